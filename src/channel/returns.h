// Returns received messages to the channel, when this process had no memory to build their objects. (recovery.cpp
// returns the messages that a dead process had taken.)
//
// Each message becomes a record, as if it had been taken and nacked, and the next receiver in any process gets it. A
// record may need memory of the arena. While there is none, the message stays in this process, in the object that it
// was received into, and the process receives nothing else before it. When the last receiver here detaches, the return
// is tried once more. A message that is given up (see Delivery) is not received again: it stays here until there is
// memory for its record, and is then among the rejected ones.
//
// Until the state of its record says "returned", the message counts as received and is lost if its receiver dies. When
// the pin of the message's block ends and its record begins, two other processes must not take the block for unused:
//   a recovery   checks the channel under the receivers' lock, and its result is valid until it clears
//                `recovery_requests`. A process that got that lock by Arena::lock() found no request, so any recovery
//                checks later and sees the record.
//   a releaser   checks under the arena's lock, first the delivered flag and then the holders. The flag is set under
//                that lock, too, and the pin ends after it.
//
// Thread safety: any thread.
#pragma once

#include <optional>

#include "channel/watchers.h"

namespace shmtree::channel {

class Returns {
 public:
  Returns(const Control& control, Records& records, Unreturned& unreturned, Watchers& watchers) noexcept
      : control_(control), records_(records), unreturned_(unreturned), watchers_(watchers) {}

  // Returns the message to the channel. Waits only briefly for locks, since the caller may hold Python's GIL. Without
  // memory for a record, or if a lock is not free soon, the message stays in this process. The next call that receives
  // here begins with it. Discards the message if the queue was shut down with its contents.
  void give_back(std::unique_ptr<Received> received) noexcept;
  // Tries again to return the kept messages that can be received. Waits for locks, but not for memory:
  // kOutOfSharedMemory if there is none for a record. Other errors as of Arena::lock(). May throw std::bad_alloc.
  Status give_back_unreturned(const WaitContext& wait) { return give_back_all(Kind::kReceivable, wait); }
  // Tries again to reject the kept messages that are given up. Succeeds also if there is no memory for their records.
  Status reject_given_up(const WaitContext& wait) {
    if (unreturned_.count(Kind::kGivenUp) == 0) [[likely]]
      return success();
    return reject_all(wait);
  }
  // Does both, for a process that is about to detach. A message that is not returned now is lost.
  void give_back_before_leaving() noexcept;
  // Receives the first kept message, unless the queue was shut down with its contents.
  bool receive_unreturned(Incoming& out) noexcept;

 private:
  using Kind = Unreturned::Kind;
  // Result of an attempt to make a record of a message: the state of the record, or the resource that was missing.
  struct Attempt {
    std::optional<RecordState> became{};
    bool lacks_record = false;  // otherwise it lacked the arena's lock
  };
  Attempt try_return(const Incoming& message) noexcept;
  void finish_return(Incoming& message, RecordState became) noexcept;
  void keep(std::unique_ptr<Received> received, Kind kind) noexcept;
  Status reject_all(const WaitContext& wait);
  Status give_back_all(Kind kind, const WaitContext& wait);
  Status add_record();
  Status wait_for_arena_lock(const WaitContext& wait);
  bool is_given_up(const Incoming& message) const noexcept;
  std::uint64_t word_of_returned(const Incoming& message) const noexcept;
  bool give_back_briefly(Incoming& message) noexcept;
  void discard(Incoming& message) noexcept;
  std::optional<RecordState> write_returned(Record& record, const Incoming& message) noexcept;

  const Control control_;
  Records& records_;
  Unreturned& unreturned_;
  Watchers& watchers_;
};

}  // namespace shmtree::channel
