// Sleeps until another thread publishes something, without depending on that thread's wake-up: a Dekker handshake
// between the publication and the waiter's flag.
//
//   publisher:  publish; unlock; notify()               (a fence separates publishing from reading the flag)
//   waiter:     loop { arm(); check the condition; sleep() }
//
// The publisher clears the flag and wakes one waiter, which sets the flag again (arm). So a waiter that was killed
// costs at most one needless system call. A woken waiter that leaves something for others calls notify() too. A
// publisher may die before it wakes a waiter, so sleeps are cut into slices, after each of which the waiter checks
// again.
#pragma once

#include <string>
#include <utility>

#include "memory/participants.h"
#include "platform/clock.h"
#include "platform/spin.h"
#include "platform/waiting.h"

namespace shmtree::memory {

// Wakes one waiter, if there may be one, and may yield the core to it. Call it last, after unlocking.
void notify(Event& event) noexcept;
// notify() for a caller that has just unlocked: the unlock orders the publication before the flag is read.
void notify_after_unlock(Event& event) noexcept;
// Wakes all waiters, for a condition that holds for each of them (closed, peer died).
void notify_all(Event& event) noexcept;

// One waiting call. Not thread safe.
class EventWait {
 public:
  // `reason` is what observers see while the thread sleeps.
  EventWait(Event& event, const SleepReason& reason, const platform::WaitContext& wait) noexcept
      : event_(event), reason_(reason), wait_(wait) {}

  // Announces the waiter. A publication after this wakes the next sleep().
  void arm() noexcept;
  enum class Wake { kRecheck, kTimedOut, kInterrupted };
  // Sleeps for at most one slice (50 ms in the first second, then 250 ms). Returns kTimedOut only once the deadline has
  // passed. Check the condition once more after that.
  Wake sleep() noexcept;

 private:
  Event& event_;
  const SleepReason reason_;
  const platform::WaitContext& wait_;
  std::int64_t began_ns_ = 0;  // read when the first sleep begins: most calls never sleep
  std::uint32_t armed_ = 0;
};

inline EventWait::Wake interrupted_or_recheck(const platform::WaitContext& wait) noexcept {
  return wait.interrupted() ? EventWait::Wake::kInterrupted : EventWait::Wake::kRecheck;
}

// A condition that takes what it finds. Once it has returned true, it does not call the function again, so
// before_sleep() may check it too: wait_until() checks it once more after that.
template <class Take>
class TakingCondition {
 public:
  explicit TakingCondition(Take take) noexcept : take_(std::move(take)) {}
  TakingCondition(const TakingCondition&) = delete;  // a copy would not see what the other one has taken
  TakingCondition& operator=(const TakingCondition&) = delete;
  bool operator()() const { return taken_ = taken_ || take_(); }

 private:
  const Take take_;
  mutable bool taken_ = false;
};

// Blocks until ready() returns true. This is the only loop of calls that sleep at an event: check, arm, check again,
// look for changes that wake no thread, sleep. `waiting` is an EventWait, or has its arm() and sleep().
//
//   ready()        checks the condition, and may note what it finds. It runs at least once after the deadline.
//   before_sleep(first)
//                  runs before each sleep, while the event is armed, and after each slice of a spin, while it is not.
//                  `first` is true in the first call. It looks for changes that wake no thread, such as deaths. If it
//                  returns true, it changed something, so ready() is checked again before the call sleeps. An error
//                  ends the wait; to report it only if ready() is still false, before_sleep() checks that itself (a
//                  TakingCondition if ready() changes anything).
//
//   polled()       is what a spin polls (platform/spin.h), before the first sleep: ready(), or a cheaper sign that
//                  ready() may be true. It must take no lock that another process may hold, and call no hook.
//
// Returns false if the deadline has passed, and kInterrupted, with `waited_for` in the message, if a hook ended the
// wait. A call that may not wait arms nothing.
template <class Waiting, class Ready, class BeforeSleep, class Polled>
Result<bool> wait_until(Waiting& waiting, const platform::WaitContext& wait, const char* waited_for, const Ready& ready,
                        const BeforeSleep& before_sleep, const Polled& polled) {
  platform::Spin spin(wait);
  bool is_over = false, attended = false;
  // ready() has one call, since it may be large and is inlined.
  for (bool checked = false;; checked = true) {
    const bool spins = spin.is_on();
    if (spins) {
      if (spin.poll(polled)) spin.stop();  // if another thread took it, this thread sleeps
    } else if (checked && !is_over) {
      waiting.arm();
    }
    if (ready()) return true;
    if (is_over) return false;
    if (!checked && !spins && !wait.deadline.is_immediate()) continue;
    Result<bool> changed = before_sleep(!std::exchange(attended, true));
    if (!changed) return changed;
    if (*changed) continue;
    switch (spins ? interrupted_or_recheck(wait) : waiting.sleep()) {
      case EventWait::Wake::kRecheck: break;
      case EventWait::Wake::kInterrupted:
        return Error{Code::kInterrupted, std::string("interrupted while waiting for ") + waited_for};
      case EventWait::Wake::kTimedOut: is_over = true; break;
    }
  }
}

// Does the same without a spin, for conditions that cannot be polled.
template <class Waiting, class Ready, class BeforeSleep>
Result<bool> wait_until(Waiting& waiting, const platform::WaitContext& wait, const char* waited_for, const Ready& ready,
                        const BeforeSleep& before_sleep) {
  const platform::WaitContext without_spin{wait.deadline, wait.hooks};
  return wait_until(waiting, without_spin, waited_for, ready, before_sleep, [] { return false; });
}

// The before_sleep() of calls that only a wake-up ends.
inline Result<bool> do_nothing(bool /*first*/) {
  return false;
}

}  // namespace shmtree::memory
