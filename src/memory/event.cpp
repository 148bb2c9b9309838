#include "memory/event.h"

#include <algorithm>
#include <atomic>
#include <climits>

#include "platform/atomics.h"
#include "platform/futex.h"
#include "platform/machine.h"
#include "platform/wait_policy.h"

namespace shmtree::memory {

using namespace platform;
using namespace platform::wait_policy;

namespace {

// Lets the woken go first. Kernels like to place it on the core of whoever woke it, where it would wait until that one
// sleeps or has used up its time: half of the time from a put to the get of a sleeping receiver. On a core of its own,
// this costs a system call. Where somebody else takes the core and keeps it, it backs off: that is left for more and
// more wake-ups.
void hand_over() noexcept {
  static std::atomic<std::int32_t> left{0}, backoff{kFirstUnoffered};
  if (const std::int32_t more = load_relaxed(left); more > 0) return left.store(more - 1, std::memory_order_relaxed);
  const std::int64_t begin = monotonic_ns();
  yield_core();
  const bool was_kept = monotonic_ns() - begin > kCoreWasKeptNs;
  const std::int32_t next = load_relaxed(backoff);
  left.store(was_kept ? next : 0, std::memory_order_relaxed);
  backoff.store(was_kept ? std::min(4 * next, kMostUnoffered) : std::max(next / 2, kFirstUnoffered),
                std::memory_order_relaxed);
}

// Whether somebody was waiting.
bool wake(Event& event, int count) noexcept {
  fence_seq_cst();  // what was published is visible before the flag is read
  if (load_relaxed(event.waiters) == 0 || exchange_seq_cst(event.waiters, 0u) == 0) return false;
  add(event.sequence, 1u);
  futex_wake(event.sequence, count);
  return true;
}

}  // namespace

void notify(Event& event) noexcept {
  if (wake(event, 1)) hand_over();
}
void notify_all(Event& event) noexcept {
  wake(event, INT_MAX);
}

void EventWait::arm() noexcept {
  armed_ = load_acquire(event_.sequence);
  store_seq_cst(event_.waiters, 1u);
  fence_seq_cst();  // the flag is visible before the condition is read
}

EventWait::Wake EventWait::sleep() noexcept {
  const std::int64_t now = monotonic_ns();
  // Skips the thread count in the first slice, because most waits end within it.
  const std::uint32_t threads = began_ns_ != 0 && wait_.deadline.is_never() ? wait_.threads() : 0;
  if (began_ns_ == 0) began_ns_ = now;
  const std::int64_t slice = now - began_ns_ < kFirstStretchNs ? kFirstSliceNs : kLaterSliceNs;
  const std::int64_t most = wait_.deadline.remaining_ns(slice);
  if (most <= 0) return Wake::kTimedOut;
  if (wait_.ended()) return Wake::kInterrupted;
  {
    const BlockingScope blocking(wait_.hooks);
    const Sleep asleep(reason_, began_ns_, now, threads);
    futex_wait(event_.sequence, armed_, most);
  }
  return wait_.interrupted() ? Wake::kInterrupted : Wake::kLookAgain;
}

}  // namespace shmtree::memory
