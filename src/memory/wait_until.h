// The one loop of calls that sleep at an event (event.h): check, arm, check again, look for what nobody wakes for,
// sleep.
#pragma once

#include <string>
#include <utility>

#include "memory/event.h"

namespace shmtree::memory {

// Blocks at `waiting`, an EventWait or what has its arm() and sleep(), until ready() returns true.
//
//   ready()        checks the condition, and may note what it finds. It runs at least once after the deadline.
//   attend(first)  runs before each sleep, `first` before the first one, while the event is armed. It looks for what
//                  wakes nobody, such as deaths. True: it changed something, so that ready() is checked again before
//                  the call sleeps. An error ends the wait; whoever must report it only if ready() is still false
//                  checks that.
//
// Returns false if the deadline has passed, and kInterrupted if a hook ended the wait, for `waited_for`. A call that
// may not wait arms nothing.
template <class Waiting, class Ready, class Attend>
Result<bool> wait_until(Waiting& waiting, const platform::WaitContext& wait, const char* waited_for, const Ready& ready,
                        const Attend& attend) {
  bool is_over = false, attended = false;
  // ready() has one call, since it may be large and is inlined.
  for (bool checked = false;; checked = true) {
    if (checked && !is_over) waiting.arm();
    if (ready()) return true;
    if (is_over) return false;
    if (!checked && !wait.deadline.is_immediate()) continue;
    Result<bool> changed = attend(!std::exchange(attended, true));
    if (!changed) return changed;
    if (*changed) continue;
    switch (waiting.sleep()) {
      case EventWait::Wake::kLookAgain: break;
      case EventWait::Wake::kInterrupted:
        return Error{Code::kInterrupted, std::string("interrupted while waiting for ") + waited_for};
      case EventWait::Wake::kTimedOut: is_over = true; break;
    }
  }
}

// For calls that nothing but a wake-up ends.
inline Result<bool> attend_to_nothing(bool /*first*/) {
  return false;
}

}  // namespace shmtree::memory
