// Messages that leave the ring: the delivery records, one for each unacked message, and the order in which messages are
// received. The record keeps the message's block alive, and outlives the process that took the message.
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

#include "channel/ring.h"

namespace shmtree::channel {

class Records {
 public:
  explicit Records(const Control& control) noexcept : control_(control) {}

  // Returns the number of unacked messages for which counts(slot) is true.
  template <class Counts>
  std::uint64_t count_unacked(const Counts& counts) const noexcept {
    std::uint64_t count = 0;
    for_each_record(control_, [&](Record& record) {
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
  // After a shutdown that discarded messages: returns the number of messages before `discarded_from` that no process
  // will receive.
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
  // Returns the record of the oldest returned message, or null. Under the receivers' lock.
  Record* first_returned() noexcept {
    return platform::load_relaxed(control_.shared.returned) == 0 ? nullptr : oldest_returned();
  }
  // Stores the record's state, and updates the counts.
  void set(Record& record, std::uint64_t word) noexcept;

 private:
  std::uint64_t each_bytes() const noexcept { return record_bytes(control_.slot_bytes); }
  Record* oldest_returned() noexcept;
  // Returns the first free record at or after position `number` of the chain.
  Record* find_free_from(std::uint64_t number) noexcept;

  const Control control_;
  std::atomic<Record*> freed_{nullptr};  // freed last by this process
  std::uint64_t next_ = 0;               // position in the chain
};

// The front of the channel: first returned messages, oldest first, then those of the ring.
class Front {
 public:
  Front(const Control& control, RingHead& head, Records& records) noexcept
      : control_(control), head_(head), records_(records) {}

  // Says if this process may receive now. Under the receivers' lock, like receive_next().
  enum class Access { kFree, kReserved, kShutDown };
  Access access() const noexcept;
  // Receives the first message. False if there is none, or none that this process can map or note.
  bool receive_next(Incoming& out, Identity me, Receipt& receipt) noexcept;
  // Drops messages that a shutdown discarded. Every process that finds some does so, since the one that shut down the
  // queue may have died.
  Status discard_queued(const WaitContext& wait);
  // Returns the error of a call that found the queue discarded by its shutdown.
  Error discarded(const WaitContext& wait);

 private:
  const Control control_;
  RingHead& head_;
  Records& records_;
};

}  // namespace shmtree::channel
