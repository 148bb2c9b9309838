#include "memory/event.h"

#include <algorithm>
#include <atomic>
#include <climits>

#include "platform/atomics.h"
#include "platform/futex.h"

namespace shmtree::memory {

using namespace platform;

namespace {

constexpr std::int64_t kFirstSliceNs = 50'000'000;
constexpr std::int64_t kLaterSliceNs = 250'000'000;
constexpr std::int64_t kFirstStretchNs = 1'000'000'000;
constexpr std::int64_t kMostWakeUpNs =
    1'000'000;  // longer is a clock of another namespace, or a process that was stopped

std::atomic<std::int64_t> usual_wake_up_ns{50'000};

// A race between threads costs one measurement.
void note_wake_up(std::int64_t took_ns) noexcept {
  if (took_ns < 0 || took_ns > kMostWakeUpNs) return;
  const std::int64_t usual = load_relaxed(usual_wake_up_ns);
  usual_wake_up_ns.store(usual + (took_ns - usual) / 8, std::memory_order_relaxed);
}

void wake(Event& event, int count) noexcept {
  full_fence();  // what was published is visible before the flag is read
  if (load_relaxed(event.waiters) == 0 || exchange_full(event.waiters, 0u) == 0) return;
  store_relaxed(event.woken_ns, monotonic_ns());
  add(event.sequence, 1u);
  futex_wake(event.sequence, count);
}

}  // namespace

std::int64_t wake_up_ns() noexcept {
  return load_relaxed(usual_wake_up_ns);
}

void notify(Event& event) noexcept {
  wake(event, 1);
}
void notify_all(Event& event) noexcept {
  wake(event, INT_MAX);
}

void EventWait::arm() noexcept {
  armed_ = load_acquire(event_.sequence);
  store_full(event_.waiters, 1u);
  full_fence();  // the flag is visible before the condition is read
}

EventWait::Wake EventWait::sleep() noexcept {
  const std::int64_t now = monotonic_ns();
  if (began_ns_ == 0) began_ns_ = now;
  const std::int64_t slice = now - began_ns_ < kFirstStretchNs ? kFirstSliceNs : kLaterSliceNs;
  const std::int64_t most = wait_.deadline.remaining_ns(slice);
  if (most <= 0) return Wake::kTimedOut;
  {
    const BlockingScope blocking(wait_.hooks);
    futex_wait(event_.sequence, armed_, most);
  }
  if (const std::int64_t woken = load_relaxed(event_.woken_ns); woken > now) note_wake_up(monotonic_ns() - woken);
  return wait_.interrupted() ? Wake::kInterrupted : Wake::kLookAgain;
}

}  // namespace shmtree::memory
