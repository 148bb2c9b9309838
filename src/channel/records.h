// The delivery records of a channel: messages taken and not yet acknowledged. A record is what keeps such a message; it
// outlives its taker.
//
// Invariants:
//   - A record's state is the truth, and `taken`, `returned`, `rejected` and `also_queued` count them: a kill in
//     between leaves counts that are off until a reconcile. Of them `also_queued` is never too low, lest a put find
//     room that is not there.
//   - A block of records stays in its chain, so walks need no lock. States change under the receivers' lock, but that
//     of a delivery that is given up while the lock is not to be had (deliveries.h).
//
// Thread safety: any thread; what says so, under the receivers' lock.
#pragma once

#include <vector>

#include "channel/control.h"

namespace shmtree::channel {

class Records {
 public:
  explicit Records(const Control& control) noexcept : control_(control) {}

  // Calls visit(record) for each, and before those of a block enter(block), until one returns false.
  template <class Visit, class Enter>
  Walked for_each(Visit visit, Enter enter) const noexcept {
    if (!is_slot_size(control_.slot_bytes)) return Walked::kDamaged;
    return walk_chain(control_.arena.blocks(), platform::load_acquire(control_.shared.records), each_bytes(),
                      [&](BlockRef block, std::byte* records, std::uint64_t count) {
                        if (!enter(block)) return false;
                        for (; count != 0; --count, records += each_bytes()) {
                          if (!visit(*reinterpret_cast<Record*>(records))) return false;
                        }
                        return true;
                      });
  }
  template <class Visit>
  Walked for_each(Visit visit) const noexcept {
    return for_each(visit, [](BlockRef) { return true; });
  }

  // How many there are that somebody waits for and that counts(slot) is true of.
  template <class Counts>
  std::uint64_t count_unacked(const Counts& counts) const noexcept {
    std::uint64_t count = 0;
    for_each([&](Record& record) {
      if (awaits_ack(state_of_record(platform::load_acquire(record.state))) && counts(record.slot())) ++count;
      return true;
    });
    return count;
  }
  // Messages taken and not settled.
  std::uint64_t unsettled() const noexcept;
  // Of each of them. One that is below `head`, as it was before, and not among these was settled. May throw
  // std::bad_alloc.
  std::vector<std::uint64_t> unsettled_tickets() const;
  bool has_too_many_taken() const noexcept {
    const std::uint64_t most = control_.shared.max_unsettled;
    return most != 0 && unsettled() >= most;
  }
  // Whether there are messages for `told` that were given back, or that another process has and may give back: then the
  // stream is not over.
  bool may_give_more(Identity told) const noexcept;
  // What becomes of one that is given back as `word`: it is discarded if the queue was shut down with all that was in
  // it. Under the receivers' lock, or else it may be returned all the same, and is discarded by who looks next.
  std::uint64_t unless_discarded(std::uint64_t word) const noexcept {
    const bool is_discarded = state_of_record(word) == RecordState::kReturned && control_.is_discarded();
    return is_discarded ? kDiscardedRecord : word;
  }
  // After such a shutdown: how many of the messages before `discarded_from` nobody is given any more.
  std::uint64_t discarded() const noexcept;
  // Number of rejected messages, including those that a process is looking at.
  std::uint64_t rejected() const noexcept;
  // More of them, one more than there are, so that the chain stays short. Called without locks; nothing is added when
  // another thread or process has done so meanwhile.
  Status add(const WaitContext& wait);

  // Under the receivers' lock; null when there is none. Looks first where one was freed, then on from where one was
  // found: a receiver that has thousands and settles them in whatever order need not look at all of them each time.
  Record* find_free() noexcept;
  Record* oldest_returned() const noexcept;
  // Stores the record's state, and counts it.
  void set(Record& record, std::uint64_t word) noexcept;
  // What was said to be returned is not.
  void forget_returned() noexcept;

 private:
  std::uint64_t each_bytes() const noexcept { return record_bytes(control_.slot_bytes); }
  // The first one from that number in the chain on.
  Record* find_free_from(std::uint64_t number) noexcept;

  const Control control_;
  std::atomic<Record*> freed_{nullptr};  // last, by this process
  std::uint64_t next_ = 0;               // number in the chain
};

}  // namespace shmtree::channel
