// Publishes in shared memory what a thread sleeps for, for observers.
//
// Invariants:
//   - An entry of Participant::waits belongs to one thread from `what` = kUnsaid until it is kNothing again. The
//     entries of a killed process stay as they are: observers show only those of living processes, and a new owner of
//     the slot clears them.
//   - While a thread sleeps, its participant's bit is in the set of the SleepTime and `since_ns` is not 0, however many
//     other threads begin and end meanwhile. Time during which several threads sleep counts once in `slept_ns`. A sleep
//     ends after a slice (wait_policy.h), so a kill leaves at most one slice uncounted.
//
// Thread safety: any thread; each has an object of its own.
#pragma once

#include "memory/participants.h"

namespace shmtree::memory {

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
