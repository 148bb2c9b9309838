// What a thread sleeps for, said in shared memory while it does, for whoever looks in from outside.
//
// Invariants:
//   - A place of Participant::waits is its taker's from `what` = kUnsaid until it is kNothing again. Places of a
//   process
//     that was killed stay as they are: who looks in shows those of the living only, and a slot is taken over clean.
//   - While a thread sleeps, its participant's bit is in SleepTime::who and `since_ns` is set, however many others
//     begin and end meanwhile; `slept_ns` counts time once in which several slept. Each sleep is over after a slice
//     (wait_policy.h), so what a kill leaves uncounted is no longer than one.
//
// Thread safety: any thread, one object each.
#pragma once

#include "memory/participants.h"

namespace shmtree::memory {

struct SleepReason {
  Participants& participants;
  WaitFor what;
  std::uint64_t about = 0;    // as Wait::about
  SleepTime* time = nullptr;  // that counts it, too
};

// Sleeps from its making to its end. A process with more threads asleep than it has places says nothing of the others.
class Sleep {
 public:
  // `since_ns`: when the call began to wait, of which this is a slice that begins `now_ns`. `threads`: of a call
  // without a deadline, how many the process has now; 0: unknown, first slice, or the call has a deadline.
  Sleep(const SleepReason& reason, std::int64_t since_ns, std::int64_t now_ns, std::uint32_t threads = 0) noexcept;
  ~Sleep();
  Sleep(const Sleep&) = delete;
  Sleep& operator=(const Sleep&) = delete;

 private:
  void begin(SleepTime& time, std::int64_t now_ns) const noexcept;
  void end(SleepTime& time) const noexcept;
  bool others_of_process_sleep() const noexcept;

  const SleepReason& reason_;
  const Identity me_;
  Wait* place_ = nullptr;
};

}  // namespace shmtree::memory
