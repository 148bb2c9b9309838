// The kernel's part of a futex. futex_wait() compares and begins to sleep in one step: `kernel` stands for the lock of
// the kernel's hash bucket, which futex_wake() takes as well.
//
// A thread calls sleeps() after each futex_wait(). It returns true in executions in which no wake-up has reached the
// thread yet. The thread then ends, and counts as asleep. At the end lost() is the number of threads without a wake-up.
#pragma once

#include "model.h"

namespace model {

constexpr int kMaxSleepers = 2;

inline constinit std::atomic<int> kernel{0};
inline void lock_kernel() {
  int free = 0;
  assume(kernel.compare_exchange_strong(free, 1, std::memory_order_acquire));
}
inline void unlock_kernel() {
  kernel.store(0, std::memory_order_release);
}
inline int sleepers = 0;                      // under `kernel`
inline std::atomic<int> woken[kMaxSleepers];  // stored under `kernel`
inline thread_local int place = -1;

inline bool sleeps() {
  if (place < 0) return false;  // futex_wait() returned at once
  return woken[place].load(std::memory_order_acquire) == 0;
}

// Call it after all threads have ended.
inline int lost() {
  int count = 0;
  for (int i = 0; i < sleepers; ++i) count += woken[i].load(std::memory_order_relaxed) == 0;
  return count;
}

}  // namespace model

namespace shmtree::platform {

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t) noexcept {
  model::lock_kernel();
  model::place = word.load(std::memory_order_relaxed) == expected ? model::sleepers++ : -1;
  model::unlock_kernel();
}

int futex_wake(const std::atomic<std::uint32_t>&, int count) noexcept {
  model::lock_kernel();
  int left = count;
  for (int i = 0; i < model::sleepers && left > 0; ++i) {
    if (model::woken[i].load(std::memory_order_relaxed) != 0) continue;
    model::woken[i].store(1, std::memory_order_release);
    --left;
  }
  model::unlock_kernel();
  return count - left;
}

std::int64_t monotonic_ns() noexcept {
  return 0;
}
std::int64_t Deadline::remaining_ns(std::int64_t max_ns) const noexcept {
  return max_ns;
}
void yield_core() noexcept {}
std::uint32_t own_thread_count() noexcept {
  return 1;
}

}  // namespace shmtree::platform

namespace shmtree::memory {

// A SleepNote only informs observers, and is not part of the handshake.
SleepNote::SleepNote(const SleepReason& reason, std::int64_t, std::int64_t, std::uint32_t) noexcept
    : reason_(reason), me_(kNoIdentity) {}
SleepNote::~SleepNote() {}

}  // namespace shmtree::memory
