// Sleeping until something was published, without ever depending on the publisher's wake-up: a Dekker handshake between
// the publication and the waiter's flag.
//
//   publisher:  publish; unlock; notify()               (a fence lies between publishing and reading the flag)
//   waiter:     loop { arm(); look at the condition; sleep() }
//
// The publisher takes the flag back and wakes one; the woken sets it again (arm), so a waiter that was killed costs one
// needless system call at most, and whoever leaves something for others calls notify() too. A publisher may die before
// it wakes anyone: sleeps come in slices, after each of which the waiter looks again.
#pragma once

#include <string>
#include <utility>

#include "memory/sleep.h"
#include "platform/clock.h"
#include "platform/waiting.h"

namespace shmtree::memory {

// Wakes one waiter, if there may be one, and may yield the core to it. Call it last, after unlocking.
void notify(Event& event) noexcept;
// Wakes all of them: the condition holds for everyone (closed, peer died).
void notify_all(Event& event) noexcept;

// One waiting call. Not thread safe.
class EventWait {
 public:
  // `reason` is what is said of it while it sleeps.
  EventWait(Event& event, const SleepReason& reason, const platform::WaitContext& wait) noexcept
      : event_(event), reason_(reason), wait_(wait) {}

  // Announces the waiter. What is published after this wakes the next sleep().
  void arm() noexcept;
  enum class Wake { kLookAgain, kTimedOut, kInterrupted };
  // Sleeps for a slice at most (50 ms in the first second, then 250 ms). kTimedOut only when the deadline has passed,
  // so the caller has looked at its condition at least once after that: look, then ask.
  Wake sleep() noexcept;

 private:
  Event& event_;
  const SleepReason reason_;
  const platform::WaitContext& wait_;
  std::int64_t began_ns_ = 0;  // read when the first sleep begins: most calls never sleep
  std::uint32_t armed_ = 0;
};

// The one loop of calls that sleep at an event: check, arm, check again, look for what nobody wakes for,
// sleep.

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
