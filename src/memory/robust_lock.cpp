#include "memory/robust_lock.h"

#include <algorithm>

#include "memory/held_locks.h"
#include "memory/participants.h"
#include "platform/atomics.h"
#include "platform/dcheck.h"
#include "platform/machine.h"
#include "platform/never_destroyed.h"
#include "platform/other_process.h"
#include "platform/wait_policy.h"

namespace shmtree::memory {

using namespace platform;
using namespace platform::wait_policy;

namespace {

int spins_before_sleep() noexcept {
  return computed_once<&usable_cores>() > 1 ? kLockSpins : 1;
}

constexpr Identity owner_in(std::uint32_t word) noexcept {
  return word & ~(kHeld | kContended);
}

}  // namespace

bool RobustLock::has_dead_owner() const noexcept {
  const std::uint32_t seen = load_acquire(word_);
  return seen != 0 && ((seen & kHeld) == 0 || !participants_.is_alive(owner_in(seen)));
}

Status RobustLock::wait_and_lock(std::atomic<std::uint32_t>& word, Participants& participants, Identity me,
                                 const WaitContext& wait) {
  RobustLock lock(word, participants);
  SHMTREE_DCHECK(me != kNoIdentity && !HeldLocks::contains(word));
  for (int i = 0; i < spins_before_sleep(); ++i) {
    if (load_relaxed(word) == 0 && lock.try_lock_as(me)) return success();
    relax_cpu();
  }
  const std::uint32_t mine = kHeld | kContended | me;  // others may sleep on the word as well
  const std::int64_t began = monotonic_ns();
  for (;;) {
    std::uint32_t seen = load_acquire(word);
    if (seen == 0) {
      if (!compare_swap(word, seen, mine)) continue;
      HeldLocks::add(word);
      return success();
    }
    // Checked before every slice: a dead owner, or a word that no owner can have written, costs no wait.
    if ((seen & kHeld) == 0 || !participants.is_alive(owner_in(seen))) {
      if (!compare_swap(word, seen, mine)) continue;
      HeldLocks::add(word);
      request_recovery(participants.header());
      return success();
    }
    if ((seen & kContended) == 0 && !compare_swap(word, seen, seen | kContended)) continue;
    {
      // Covers only the sleep. Hooks must not run while the lock is held, nor between before_block and after_block.
      const BlockingScope blocking(wait.hooks);
      const SleepReason reason{participants, WaitFor::kLock, owner_in(seen)};
      const SleepNote asleep(reason, began, began);
      futex_wait(word, seen | kContended, std::max(wait.deadline.remaining_ns(kLockSliceNs), kMinLockSliceNs));
    }
    if (wait.interrupted()) return Error{Code::kInterrupted, "interrupted while waiting for a lock"};
    if (!wait.deadline.passed()) continue;
    const std::int64_t waited = monotonic_ns() - began;
    const std::uint32_t still = load_acquire(word);
    if (waited < kLockGraceNs || (still & kHeld) == 0) continue;
    const int owner = load_relaxed(participants.slot_of_identity(owner_in(still)).pid);
    if (waited > kBusyOwnerNs || is_stopped(owner)) {
      return Error{Code::kTimeout,
                   "timed out: process " + std::to_string(owner) +
                       " holds the lock and does not release it; it is alive, perhaps stopped (SIGSTOP or a debugger)"};
    }
  }
}

}  // namespace shmtree::memory
