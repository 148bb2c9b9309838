// Locks that outlive their owners: a futex word that names its owner, who is looked at when it keeps one waiting.
#include <algorithm>
#include <new>

#include "memory/arena.h"
#include "platform/atomics.h"
#include "platform/futex.h"
#include "platform/machine.h"
#include "platform/other_process.h"

namespace shmtree::memory {
namespace {

using namespace platform;

// An owner that is not stopped lacks a processor: it is waited for that long, whatever the deadline, since what is in
// the channel is there all the same.
constexpr std::int64_t kBusyGraceNs = 2'000'000'000;
constexpr std::int64_t kLeastSliceNs = 4'000'000;

constexpr std::int64_t kSliceNs = 20'000'000;  // how long a sleeper may miss a wake-up, or a death
constexpr std::int64_t kGraceNs = 40'000'000;  // a lock is waited for at least this long, whatever the deadline
constexpr int kMostRepairs = 8;                // that a lock is waited for whatever the deadline
constexpr int kSpins = 200;                    // about 5 us: longer than any critical section

int spins_before_sleep() noexcept {
  static const int spins = usable_cores() > 1 ? kSpins : 1;
  return spins;
}

}  // namespace

bool Arena::try_lock(std::atomic<std::uint32_t>& word) noexcept {
  const Identity me = current_identity();
  std::uint32_t expected = 0;
  return me != kNobody && compare_swap(word, expected, kHeld | me);
}

void Arena::unlock(std::atomic<std::uint32_t>& word) noexcept {
  // Full ordering: what was released meanwhile is looked for after this store (unlock_blocks).
  const std::uint32_t was = exchange_full(word, 0u);
  if ((was & kContended) != 0) futex_wake(word, 1);
}

Status Arena::lock(std::atomic<std::uint32_t>& word, const WaitContext& wait) {
  Identity me = current_identity();
  if (me == kNobody) [[unlikely]] {
    auto taken = identity();
    if (!taken) return std::move(taken).error();
    me = *taken;
  }
  for (int repairs = 0;; ++repairs) {
    std::uint32_t expected = 0;
    if (!compare_swap(word, expected, kHeld | me)) {
      Status taken = lock_raw(word, me, wait);
      if (!taken) return taken;
    }
    if (!dirty()) [[likely]]
      return success();
    unlock(word);
    if (repairs >= kMostRepairs && wait.deadline.passed()) {
      return Error{Code::kTimeout, "timed out while the arena's state was found wrong again after every repair"};
    }
    Status repaired = reconcile(wait);
    if (!repaired) return repaired;
  }
}

bool Arena::lock_quietly(std::atomic<std::uint32_t>& word, const WaitContext& wait) noexcept {
  try {
    return lock(word, wait).ok();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool Arena::reconcile_quietly(const WaitContext& wait) noexcept {
  try {
    return reconcile(wait).ok();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

Status Arena::lock_raw(std::atomic<std::uint32_t>& word, Identity me, const WaitContext& wait) {
  std::uint32_t mine = kHeld | me;
  for (int i = 0; i < spins_before_sleep(); ++i) {
    std::uint32_t expected = 0;
    if (load_relaxed(word) == 0 && compare_swap(word, expected, mine)) return success();
    relax_cpu();
  }
  const std::int64_t began = monotonic_ns();
  mine |= kContended;  // others may sleep on the word as well: whoever unlocks has to wake one
  for (;;) {
    std::uint32_t seen = load_acquire(word);
    if (seen == 0) {
      if (compare_swap(word, seen, mine)) return success();
      continue;
    }
    // Looked at before every slice: a dead owner, or a word that no owner can have written, costs no wait.
    if ((seen & kHeld) == 0 || !is_alive(seen & ~(kHeld | kContended))) {
      if (!compare_swap(word, seen, mine)) continue;
      mark_dirty();
      return success();
    }
    if ((seen & kContended) == 0 && !compare_swap(word, seen, seen | kContended)) continue;
    {
      // Only the sleep: hooks are called neither with the lock taken nor, below, between before_block and after_block.
      const BlockingScope blocking(wait.hooks);
      futex_wait(word, seen | kContended, std::max(wait.deadline.remaining_ns(kSliceNs), kLeastSliceNs));
    }
    if (wait.interrupted()) return Error{Code::kInterrupted, "interrupted while waiting for a lock"};
    if (!wait.deadline.passed()) continue;
    const std::int64_t waited = monotonic_ns() - began;
    const std::uint32_t still = load_acquire(word);
    if (waited < kGraceNs || (still & kHeld) == 0) continue;
    const int owner = load_relaxed(participant(slot_of(still & ~(kHeld | kContended))).pid);
    if (waited > kBusyGraceNs || is_stopped(owner)) {
      return Error{Code::kTimeout, "timed out while process " + std::to_string(owner) +
                                       " kept the channel's lock; it is alive, perhaps stopped"};
    }
  }
}

}  // namespace shmtree::memory
