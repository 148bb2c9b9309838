// The delivery records of a channel: one for each unacked message. The record keeps the message's block alive, and
// outlives the process that took the message.
//
// Invariants:
//   - The state of each record is primary; `taken`, `returned`, `rejected` and `also_queued` are derived counts. If a
//     process dies between the stores, the counts are off until a reconcile. `also_queued` is never too low, so that no
//     put finds space that does not exist.
//   - A block of records is never unlinked from its chain, so walks need no lock. States change under the receivers'
//     lock, except when a destroyed delivery cannot get the lock (Delivery::give_up).
//
// Thread safety: any thread, except where a comment says "under the receivers' lock".
#pragma once

#include <vector>

#include "channel/control.h"

namespace shmtree::channel {

class Records {
 public:
  explicit Records(const Control& control) noexcept : control_(control) {}

  // Calls visit(record) for each record, and enter(block) before the records of each block, until one returns false.
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

  // Returns the number of unacked messages for which counts(slot) is true.
  template <class Counts>
  std::uint64_t count_unacked(const Counts& counts) const noexcept {
    std::uint64_t count = 0;
    for_each([&](Record& record) {
      if (awaits_ack(state_of_record(platform::load_acquire(record.state))) && counts(record.slot())) ++count;
      return true;
    });
    return count;
  }
  // Returns the number of messages that were taken and not settled.
  std::uint64_t unacked() const noexcept;
  // Returns their tickets. If a ticket was below a `head` that the caller read before and is not in the result, its
  // message was settled. May throw std::bad_alloc.
  std::vector<std::uint64_t> unacked_tickets() const;
  bool has_too_many_taken() const noexcept {
    const std::uint64_t most = control_.shared.max_unacked;
    return most != 0 && unacked() >= most;
  }
  // True if a record holds a message that was returned, or that another process than `observer` has taken and may
  // return. The stream has not ended for `observer` then.
  bool may_give_more(Identity observer) const noexcept;
  // Returns the word for a record that is returned as `word`: kDiscardedRecord if the queue was shut down with its
  // contents. Without the receivers' lock, a shutdown may be missed: the message is then returned, and the next
  // receiver discards it.
  std::uint64_t unless_discarded(std::uint64_t word) const noexcept {
    const bool is_discarded = state_of_record(word) == RecordState::kReturned && control_.is_discarded();
    return is_discarded ? kDiscardedRecord : word;
  }
  // After such a shutdown: returns the number of messages before `discarded_from` that no process will receive.
  std::uint64_t discarded() const noexcept;
  // Returns the number of rejected messages, including those that a process is inspecting.
  std::uint64_t rejected() const noexcept;
  // Adds a block of records, one more than there are, so that the chain stays short. Adds nothing if another thread or
  // process has done so meanwhile. Call it without locks.
  Status add(const WaitContext& wait);

  // Returns a free record, or null if there is none. Under the receivers' lock. Starts at the record that was freed
  // last, then continues after the one that was found last. So a receiver with thousands of unacked messages does not
  // search all records each time, in whatever order it acks them.
  Record* find_free() noexcept;
  Record* oldest_returned() const noexcept;
  // Stores the record's state, and updates the counts.
  void set(Record& record, std::uint64_t word) noexcept;
  // Resets the counts of returned messages: there are none.
  void forget_returned() noexcept;

 private:
  std::uint64_t each_bytes() const noexcept { return record_bytes(control_.slot_bytes); }
  // Returns the first free record at or after position `number` of the chain.
  Record* find_free_from(std::uint64_t number) noexcept;

  const Control control_;
  std::atomic<Record*> freed_{nullptr};  // freed last by this process
  std::uint64_t next_ = 0;               // position in the chain
};

}  // namespace shmtree::channel
