#include "memory/event.h"

#include <algorithm>
#include <atomic>
#include <climits>

#include "memory/held_locks.h"
#include "platform/atomics.h"
#include "platform/dcheck.h"
#include "platform/futex.h"
#include "platform/machine.h"
#include "platform/wait_policy.h"

namespace shmtree::memory {

using namespace platform;
using namespace platform::wait_policy;

namespace {

// Yields the core to the thread that was woken. Linux may place that thread on the waker's core, where it would wait
// until the waker sleeps. For a receiver that slept for 1 ms this cuts the time from put to get from 13 us to 8 us.
//
// Does nothing if this process woke a thread less than kRareWakeNs ago: two processes on one core would take turns
// message by message. Backs off after a yield longer than kCoreWasKeptNs: another process kept the core.
void offer_core() noexcept {
  static std::atomic<std::int64_t> last_wake_ns{0};
  static std::atomic<std::int32_t> left{0}, backoff{kFirstUnoffered};
  const std::int64_t now = monotonic_ns();
  const std::int64_t since = now - last_wake_ns.exchange(now, std::memory_order_relaxed);
  if (since < kRareWakeNs) return;
  if (const std::int32_t more = load_relaxed(left); more > 0) return left.store(more - 1, std::memory_order_relaxed);
  yield_core();
  const bool was_kept = monotonic_ns() - now > kCoreWasKeptNs;
  const std::int32_t next = load_relaxed(backoff);
  left.store(was_kept ? next : 0, std::memory_order_relaxed);
  backoff.store(was_kept ? std::min(4 * next, kMaxUnoffered) : std::max(next / 2, kFirstUnoffered),
                std::memory_order_relaxed);
}

// Returns true if a thread was waiting. Call it after a full barrier that follows the publication.
bool wake(Event& event, int count) noexcept {
  if (load_relaxed(event.waiters) == 0 || exchange_seq_cst(event.waiters, 0u) == 0) return false;
  add(event.sequence, 1u);
  futex_wake(event.sequence, count);
  return true;
}

}  // namespace

void notify(Event& event) noexcept {
  fence_seq_cst();  // what was published is visible before the flag is read
  if (wake(event, 1)) offer_core();
}
void notify_after_unlock(Event& event) noexcept {
  fence_after_exchange();
  if (wake(event, 1)) offer_core();
}
void notify_all(Event& event) noexcept {
  fence_seq_cst();
  wake(event, INT_MAX);
}

void EventWait::arm() noexcept {
  armed_ = load_acquire(event_.sequence);
  store_seq_cst(event_.waiters, 1u);
  fence_seq_cst();  // the flag is visible before the condition is read
}

EventWait::Wake EventWait::sleep() noexcept {
  SHMTREE_DCHECK(!HeldLocks::contains(reason_.participants.header().arena_lock));
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
    const SleepNote asleep(reason_, began_ns_, now, threads);
    futex_wait(event_.sequence, armed_, most);
  }
  return interrupted_or_recheck(wait_);
}

}  // namespace shmtree::memory
