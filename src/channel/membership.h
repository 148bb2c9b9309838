// The objects that this process has of the ends of one channel, and the bits in shared memory that follow from them:
// membership of an end, and use of it. Also returns received messages to the channel.
//
// Invariants:
//   - The process is a member of an end while it owns an object of it. Its first object sets the bit, and the bit is
//     cleared only when no object is left, both under mutex_. A forked child is a member before it exists.
//   - leave() sets `begun` before it clears a member's bit, so that a reconcile finishes the removal after a crash.
//     make_passive() sets `begun` only if the process had used the end.
//   - A process with an exit_failure() records it before it clears its bit of an end that it is attached to.
//   - The process's `passive` bit is set while it has a passive object of the end.
//   - An object that is closed while a call may still put a message counts until leave_now(). It does not count for a
//     forked child, which has no such calls.
//   - A process that may have been the last one attached to an end wakes every waiter.
//
// Thread safety: any thread; pass_to_child() only in fork handlers, with every fork-safe mutex held.
#pragma once

#include <mutex>
#include <optional>

#include "channel/records.h"
#include "channel/watchers.h"

namespace shmtree::channel {

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
  bool has_unreturned() const noexcept { return unreturned_.count() != 0; }
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

class Membership {
 public:
  Membership(const Control& control, Ends& ends, Watchers& watchers, Returns& returns) noexcept
      : control_(control), ends_(ends), watchers_(watchers), returns_(returns) {}

  // Counts one object of `end` more, or one fewer, in this process.
  Status join(End end);
  void leave(End end) noexcept;
  // Closes an object by `close`, which returns true if it did; the caller then calls leave_now(). No fork happens
  // between `close` and the count.
  template <class Close>
  bool leave_later(End end, Close close) noexcept {
    const std::lock_guard guard(mutex_);
    const bool closed = close();
    if (closed) ++leaving_[end];
    return closed;
  }
  // Does nothing in a child that was forked since leave_later().
  void leave_now(End end) noexcept;
  // Makes an inherited object passive. Its process no longer delays the end of the stream for its peers.
  void make_passive(End end) noexcept;
  // Unregisters a passive object, which was destroyed or attached.
  void end_passive(End end) noexcept;
  // True if this process has used the end.
  bool is_used(End end) const noexcept;
  // Both unregister all objects of both ends: leave_all() when the Channel is destroyed, leave_at_exit() when the
  // process is about to exit. At exit, descriptors stay open, since other threads may still poll them.
  void leave_all() noexcept;
  void leave_at_exit() noexcept;
  // Attaches a passive end on its first use (see endpoint::Port). Returns kClosed for a sending end if the stream, or
  // the queue, has ended for a process that receives. A receiver gets what is queued, as any newcomer does.
  Status join_late(End end);
  // Records that this process received the end as an argument or in a message.
  void note_given(End end) noexcept;
  // True if this process has an object of either end that is not about to leave.
  bool is_used_here() noexcept;
  bool is_member(End end, Identity me) const noexcept { return ends_.has_member(end, me); }
  void mark_used(End end, Identity me) noexcept {
    if (used_as_[end].load(std::memory_order_relaxed) != me) [[unlikely]]
      note_use(end, me);
  }

  // Begins the transfer of an end to another process, and returns its number. The end counts as attached until the
  // transfer ends, or until 60 s after this process dies. kOutOfSharedMemory if there is no memory for the transfer.
  Result<std::uint64_t> begin_transfer(End end);
  // Ends the transfer, after the receiving process has joined. Idempotent.
  void end_transfer(std::uint64_t number, End end) noexcept;
  // Makes a participant that does not run yet (reserve_slot) a member of that end and a holder of the channel's block.
  void give_to(Identity child, End end) noexcept;
  // Makes a forked child a member of the ends that its parent is a member of. It has not used them.
  void pass_to_child(Identity child) noexcept;
  // Drops objects that were about to leave. Called in the forked child, by its fork handler.
  void drop_leaving() noexcept;

 private:
  void add_member(End end, Identity identity) noexcept;
  void add_child_member(End end, Identity child) noexcept;
  // Wakes the calls that wait for receivers, after a process may have become one.
  void announce_receiver(End end) noexcept {
    if (end == End::kReceiving) memory::notify_all(control_.shared.acked);
  }
  void replace_killed(End end) noexcept;
  // A passive process leaves an end as if it had never been a member, unless it used the end.
  enum class Role { kMember, kPassive };
  void leave(End end, Role role) noexcept;
  void leave_end(End end, Role role) noexcept;
  bool is_open(End end) const noexcept { return objects_[end] > leaving_[end]; }
  void depart_unless_used(End end, Role role = Role::kMember) noexcept;
  void note_failure(End end) noexcept;
  void note_use(End end, Identity me) noexcept;
  EndState& state(End end) const noexcept { return control_.shared.ends[end]; }

  const Control control_;
  Ends& ends_;
  Watchers& watchers_;
  Returns& returns_;
  platform::ForkSafeMutex mutex_;
  PerEnd<std::uint32_t> objects_{};            // Under mutex_, like the process's member bits.
  PerEnd<std::uint32_t> leaving_{};            // Under mutex_; wait for leave_now().
  PerEnd<std::uint32_t> passive_{};            // Under mutex_.
  PerEnd<std::atomic<Identity>> joined_as_{};  // Identity that has taken a dead member's place.
  PerEnd<std::atomic<Identity>> used_as_{};    // Identity that mark_used() has seen.
};

}  // namespace shmtree::channel
