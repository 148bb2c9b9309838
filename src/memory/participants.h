// The participants of an arena: the attached processes, this one among them, and those that have died.
//
// Invariants:
//   - A participant is alive while byte `slot` of the file is locked, through a descriptor of its own that the kernel
//     closes with the process. The rest of the slot is for reports, or records how its owner left it.
//   - An identity (slot and generation) names one owner of a slot forever. Holder bits carry no generation, so a slot
//     is reused only when clean: its owner freed it clean, a reconcile swept it, or its new owner claims it as kStale
//     and sweeps it first.
//   - The identity of a forked child is the one that its parent claimed for it before the fork, or none. Nothing that
//     the child inherited keeps the parent alive from then on.
//   - A process with the identity kNoIdentity releases nothing.
//   - An entry of Participant::waits, which says what a thread sleeps for, belongs to one thread from `what` = kUnsaid
//     until it is kNothing again. The entries of a killed process stay as they are: observers show only those of living
//     processes, and a new owner of the slot clears them.
//   - While a thread sleeps, its participant's bit is in the set of the SleepTime and `since_ns` is not 0, however many
//     other threads begin and end meanwhile. Time during which several threads sleep counts once in `slept_ns`. A sleep
//     ends after a slice (wait_policy.h), so a kill leaves at most one slice uncounted.
//
// Thread safety: any thread; the functions that fork handlers call, with every fork-safe mutex held.
#pragma once

#include <algorithm>
#include <atomic>
#include <string_view>
#include <utility>

#include "memory/layout.h"
#include "platform/checked_fd.h"
#include "platform/dcheck.h"
#include "platform/fork.h"

namespace shmtree::memory {

// A slot that was claimed for a process that does not run yet (fork, spawn). It can already hold blocks as `identity`,
// and is alive while any process has `lock` open.
struct ReservedSlot {
  Identity identity = kNoIdentity;
  platform::UniqueFd lock;
};

class Participants {
 public:
  // `slots` has kMaxParticipants elements.
  Participants(ArenaHeader& header, Participant* slots, const platform::CheckedFd& file) noexcept
      : header_(header), slots_(slots), file_(file) {}

  // Returns this process's identity; kNoIdentity if it has none, as in a child of a fork without handlers.
  Identity current() const noexcept { return platform::process_stamp() == 0 ? kNoIdentity : load_identity(); }
  bool is_alive(Identity identity) const noexcept;
  bool is_owner_alive(std::uint32_t number) const noexcept {
    return is_alive(make_identity(number, platform::load_acquire(slot(number).generation)));
  }
  Participant& slot(std::uint32_t number) const noexcept {
    SHMTREE_DCHECK(number < kMaxParticipants);
    return slots_[number];
  }
  Participant& slot_of_identity(Identity identity) const noexcept { return slot(slot_of(identity)); }
  // Number of slots that were ever used.
  std::uint32_t used_slots() const noexcept {
    return std::min(platform::load_acquire(header_.participants_high), kMaxParticipants);
  }
  bool is_status(std::uint32_t number, ParticipantStatus status) const noexcept {
    return platform::load_acquire(slot(number).status) == static_cast<std::uint32_t>(status);
  }
  ArenaHeader& header() const noexcept { return header_; }
  // Checks all participants for deaths if no process has done so for `interval_ns`. Returns true if a recovery is
  // requested, as it is after a death. Also true if has_descriptors() is false: the recovery then fails with that
  // error.
  bool check(std::int64_t interval_ns) noexcept;
  // Returns false if the program has closed a descriptor of the arena. This process then counts as dead for the others,
  // so it gives up its identity for good. Each later call that needs an identity fails with the error of
  // check_descriptors(). Takes 0.5 us.
  bool has_descriptors() noexcept;
  Status check_descriptors();

  enum class Claimable { kFree, kFreeOrStale };
  // Takes a free slot, or the slot of a dead participant. The latter becomes kStale: a reconcile must sweep it before
  // it holds anything. Code::kUnavailable if living processes have all 1,024 slots.
  Result<ReservedSlot> claim(Claimable slots);
  // Number of forks of this process. Read it before claim(), for enroll().
  std::uint32_t forks() const noexcept { return platform::load_acquire(forks_); }
  // Makes the claimed slot the identity of this process, and returns the identity. If another thread has enrolled this
  // process first, frees the slot and returns the existing identity. `forks` is the result of forks() before claim().
  Identity enroll(ReservedSlot claimed, std::uint32_t forks);
  // Does the same with a slot that the parent of this process claimed. Does nothing if this process has an identity.
  // From then on, the parent's copies of `lock` do not keep the slot alive.
  void adopt(Identity identity, platform::UniqueFd lock) noexcept;
  // Gives up a slot that no process will adopt. This is not reported as a death.
  void abandon(ReservedSlot claimed) noexcept;
  // Moves the lock of a slot that this process keeps, so that children with a copy of the descriptor do not keep the
  // slot alive.
  void keep_lock_from_children(ReservedSlot& claimed) const noexcept;
  // Stores the pid of the process that was started for a claimed slot, until that process adopts the slot.
  void note_started(Identity claimed, int pid) noexcept;
  // Returns the pid of the owner of a slot; 0 if the owner is a forked child that has not stored its pid.
  int known_pid(std::uint32_t number) const noexcept;
  // Ends the participation, but not the holds: this process is about to exit normally.
  void detach() noexcept;
  // Ends the participation and the holds. Requires that this process has no lease left.
  void leave() noexcept;

  // Under the arena lock: records that this process has pages registered for DMA, or no longer has.
  // Sets the name of this process, for the arenas that it attaches to from now on. Cuts it at 48 bytes. Returns false
  // if the process has that name already.
  static bool set_process_name(std::string_view name) noexcept;
  // Writes that name to this process's slot.
  void note_process_name() noexcept;
  void set_pinned(bool pinned) noexcept;
  // Returns true if any process has pages registered for DMA.
  bool is_pinned() const noexcept;
  bool is_pinned_here() const noexcept;

  // The fork handlers. Before the fork: claims a slot for the child and returns its identity; kNoIdentity if that
  // failed.
  Identity claim_for_child(bool leaving) noexcept;
  void after_fork_in_parent() noexcept;
  // Returns true if this process has taken over the slot that was claimed for it. Abandons the slot if the parent was
  // about to leave the arena, because no thread of the child would free it.
  bool after_fork_in_child(bool leaving) noexcept;
  // Drops the identity, in a child of a fork that did not run the fork handlers.
  void forget() noexcept;

 private:
  Identity load_identity() const noexcept { return identity_.load(std::memory_order_acquire); }
  Result<Identity> occupy(std::uint32_t number, ParticipantStatus status);
  void become(ReservedSlot claimed) noexcept;

  ArenaHeader& header_;
  Participant* const slots_;
  const platform::CheckedFd& file_;
  std::atomic<Identity> identity_{kNoIdentity};
  platform::ForkSafeMutex mutex_;    // guards changes of the identity
  platform::CheckedFd liveness_fd_;  // under mutex_
  std::atomic<bool> lost_descriptors_{false};
  std::atomic<std::int64_t> descriptors_checked_ns_{0};
  ReservedSlot child_;  // set between the fork handlers
  std::atomic<std::uint32_t> forks_{0};
};

// The reason of a sleep. The sleeping thread publishes it for observers.
struct SleepReason {
  Participants& participants;
  WaitFor what;
  std::uint64_t about = 0;    // as Wait::about
  SleepTime* time = nullptr;  // counts the time as well; may be null
};

// Marks the thread as asleep from its construction to its destruction. A process has entries for kMaxWaits sleeping
// threads; further ones are not shown.
class SleepNote {
 public:
  // `since_ns`: when the call began to wait. `now_ns`: when this slice begins. `threads`: for a call without a
  // deadline, the number of threads of the process. 0: unknown, the first slice, or the call has a deadline.
  SleepNote(const SleepReason& reason, std::int64_t since_ns, std::int64_t now_ns, std::uint32_t threads = 0) noexcept;
  ~SleepNote();
  SleepNote(const SleepNote&) = delete;
  SleepNote& operator=(const SleepNote&) = delete;

 private:
  void begin(SleepTime& time, std::int64_t now_ns) const noexcept;
  void end(SleepTime& time) const noexcept;
  bool others_of_process_sleep() const noexcept;

  const SleepReason& reason_;
  const Identity me_;
  Wait* entry_ = nullptr;
};

}  // namespace shmtree::memory
