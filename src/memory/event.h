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

}  // namespace shmtree::memory
