// What this process has of a channel's ends: objects of them, which make it a member, and uses.
//
// Invariants:
//   - The process is a member of an end while it has an object of it; a forked child is from before it exists. Its
//     bit is set with the first object, and cleared only where there is none, both under the mutex.
//   - leave() sets `begun` before it clears a member's bit, so that a reconcile finishes the removal after a kill.
//     make_passive() sets `begun` only if the process had used the end.
//   - The process's `passive` bit is set while it has a passive object of the end.
//   - An object that is closed while a call may still put a message counts until leave_now(). It does not count for a
//     forked child, which has no such calls.
//   - Whoever may have been the last to take part in an end wakes all who wait.
//
// Thread safety: any thread; hand_down() in the fork handlers, with every fork-safe mutex held.
#pragma once

#include <mutex>

#include "channel/returns.h"

namespace shmtree::channel {

class Membership {
 public:
  Membership(const Control& control, Ends& ends, Watchers& watchers, Returns& returns) noexcept
      : control_(control), ends_(ends), watchers_(watchers), returns_(returns) {}

  // This process has one more, or one fewer, object of that end.
  Status join(End end);
  void leave(End end) noexcept;
  // Closes an object by `close`, which returns whether it did; leave_now() follows. No fork comes in between `close`
  // and the count.
  template <class Close>
  bool leave_later(End end, Close close) noexcept {
    const std::lock_guard guard(mutex_);
    const bool closed = close();
    if (closed) ++leaving_[end];
    return closed;
  }
  // Does nothing in a child that was forked since leave_later().
  void leave_now(End end) noexcept;
  // Makes an object of an end passive that was inherited and not given. Peers do not see an end of stream because of
  // it.
  void make_passive(End end) noexcept;
  // A passive object of it is gone, or was attached.
  void end_passive(End end) noexcept;
  // Whether this process has used it.
  bool is_used(End end) const noexcept;
  // It has none of either any more: the channel goes with this, or the process is about to exit. Then descriptors stay,
  // since other threads may still poll them.
  void leave_all() noexcept;
  void leave_at_exit() noexcept;
  // Attaches a passive end on its first use (see endpoint::Port). kClosed for a sending end if the stream, or the
  // queue, ended in the meantime for a process that receives. A receiver gets what is queued, as any newcomer does.
  Status join_late(End end);
  // This process was given the end to use it.
  void note_given(End end) noexcept;
  // Whether it has any object of either end that is not about to leave.
  bool is_used_here() noexcept;
  bool is_member(End end, Identity me) const noexcept { return ends_.has_member(end, me); }
  void mark_used(End end, Identity me) noexcept {
    if (used_as_[end].load(std::memory_order_relaxed) != me) [[unlikely]]
      note_use(end, me);
  }

  // Begins the transfer of an end to another process, and returns its number. The end counts as attached until the
  // transfer ends: while this process lives, and 60 s longer. kOutOfSharedMemory if there is no memory to note it.
  Result<std::uint64_t> begin_transfer(End end);
  // Ends it, after the receiving process has joined. The same number twice does nothing.
  void end_transfer(std::uint64_t number, End end) noexcept;
  // A participant that does not run yet (reserve_slot) is given that end, and holds the channel.
  void give_to(Identity child, End end) noexcept;
  // A forked child has what its parent has; uses are its own.
  void hand_down(Identity child) noexcept;
  // In that child, by its fork handler.
  void drop_leaving() noexcept;

 private:
  void seat(End end, Identity who) noexcept;
  void seat_child(End end, Identity child) noexcept;
  void take_place_of_killed(End end) noexcept;
  // A passive process leaves an end as if it never was a member, unless it used the end.
  enum class Role { kMember, kPassive };
  void leave(End end, Role role) noexcept;
  void leave_end(End end, Role role) noexcept;
  bool is_open(End end) const noexcept { return objects_[end] > leaving_[end]; }
  void depart_unless_used(End end, Role role = Role::kMember) noexcept;
  void note_use(End end, Identity me) noexcept;
  EndState& state(End end) const noexcept { return control_.shared.ends[end]; }

  const Control control_;
  Ends& ends_;
  Watchers& watchers_;
  Returns& returns_;
  platform::ForkSafeMutex mutex_;
  PerEnd<std::uint32_t> objects_{};            // under mutex_, as the process's member bits
  PerEnd<std::uint32_t> leaving_{};            // likewise; those of `objects_` that leave_now() is to come for
  PerEnd<std::uint32_t> passive_{};            // likewise
  PerEnd<std::atomic<Identity>> joined_as_{};  // with the place of one that was killed, where those are waited for
  PerEnd<std::atomic<Identity>> used_as_{};    // identity that mark_used() has seen
};

}  // namespace shmtree::channel
