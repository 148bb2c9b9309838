// Named memory orderings. Words in shared memory that other processes can see are changed only through these functions,
// so that each call states its ordering. Memory that no other process can see yet is written with plain stores.
//
// All types used are lock-free on x86-64 and aarch64, so they are valid between processes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace shmtree::platform {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

// A crash point: a test can kill the process here, before each change of shared memory. Compiled in for tests only.
#if defined(SHMTREE_CRASH_POINTS)
inline std::atomic<std::int64_t> changes_until_crash{0};  // counted down by each change; 0: never
inline int crash_signal = 9;  // SIGKILL; SIGSTOP for a test that then steps through the code
void crash_now() noexcept;
inline void crash_point() noexcept {
  if (changes_until_crash.load(std::memory_order_relaxed) > 0 && changes_until_crash.fetch_sub(1) == 1) crash_now();
}
#else
inline void crash_point() noexcept {}
#endif

// No ordering. For hints, statistics, and data that a lock orders.
template <class T>
inline T load_relaxed(const std::atomic<T>& a) noexcept {
  return a.load(std::memory_order_relaxed);
}
template <class T>
inline void store_relaxed(std::atomic<T>& a, T value) noexcept {
  crash_point();
  a.store(value, std::memory_order_relaxed);
}

// Reads a plain word that other processes may write meanwhile. Reads it exactly once, so that the checked value is the
// used value.
template <class T>
inline T load_once(const T& word) noexcept {
  T value;
  __atomic_load(&word, &value, __ATOMIC_RELAXED);
  return value;
}
// Writes a plain word that other processes may load_once() meanwhile.
template <class T>
inline void store_once(T& word, T value) noexcept {
  crash_point();
  __atomic_store(&word, &value, __ATOMIC_RELAXED);
}

// Makes all writes before the store_release() of the value visible to this thread.
template <class T>
inline T load_acquire(const std::atomic<T>& a) noexcept {
  return a.load(std::memory_order_acquire);
}
// Makes all earlier writes visible to any thread that acquires the value.
template <class T>
inline void store_release(std::atomic<T>& a, T value) noexcept {
  crash_point();
  a.store(value, std::memory_order_release);
}

// Compare and swap, acquire and release. On failure, `expected` is the current value.
template <class T>
inline bool compare_swap(std::atomic<T>& a, T& expected, T desired) noexcept {
  crash_point();
  return a.compare_exchange_strong(expected, desired, std::memory_order_acq_rel, std::memory_order_acquire);
}

// Sequentially consistent: ordered against every other operation of this kind and fence_seq_cst() of all processes.
// Used where two sides each store one word and then read the other's (waiter flags, holder sets, the hint of pending
// releases).
template <class T>
inline T exchange_seq_cst(std::atomic<T>& a, T value) noexcept {
  crash_point();
  return a.exchange(value, std::memory_order_seq_cst);
}
template <class T>
inline bool compare_swap_seq_cst(std::atomic<T>& a, T& expected, T desired) noexcept {
  crash_point();
  return a.compare_exchange_strong(expected, desired, std::memory_order_seq_cst);
}
template <class T>
inline T load_seq_cst(const std::atomic<T>& a) noexcept {
  return a.load(std::memory_order_seq_cst);
}
template <class T>
inline void store_seq_cst(std::atomic<T>& a, T value) noexcept {
  crash_point();
  a.store(value, std::memory_order_seq_cst);
}
template <class T>
inline T set_bits(std::atomic<T>& a, T bits) noexcept {
  crash_point();
  return a.fetch_or(bits, std::memory_order_seq_cst);
}
template <class T>
inline T clear_bits(std::atomic<T>& a, T bits) noexcept {
  crash_point();
  return a.fetch_and(static_cast<T>(~bits), std::memory_order_seq_cst);
}
template <class T>
inline T add(std::atomic<T>& a, T amount) noexcept {
  crash_point();
  return a.fetch_add(amount, std::memory_order_acq_rel);
}
template <class T>
inline T subtract(std::atomic<T>& a, T amount) noexcept {
  crash_point();
  return a.fetch_sub(amount, std::memory_order_seq_cst);
}

inline void fence_seq_cst() noexcept {
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer does not model fences; a read-modify-write of a shared word orders the same accesses.
  static std::atomic<std::uint32_t> word{0};
  word.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// Acquire: loads before the fence are not moved after it. Release: stores before the fence are visible before stores
// after it. For words that tell if bytes were changed while they were read, or are about to be written.
#if defined(__SANITIZE_THREAD__)
inline void fence_acquire() noexcept {
  fence_seq_cst();
}
inline void fence_release() noexcept {
  fence_seq_cst();
}
#else
inline void fence_acquire() noexcept {
  std::atomic_thread_fence(std::memory_order_acquire);
}
inline void fence_release() noexcept {
  std::atomic_thread_fence(std::memory_order_release);
}
#endif

// The full barrier that follows a read-modify-write of this thread, such as an unlock, with no publication in between.
// On x86 the read-modify-write is a full barrier.
inline void fence_after_exchange() noexcept {
#if defined(__x86_64__)
  std::atomic_signal_fence(std::memory_order_seq_cst);
#else
  fence_seq_cst();
#endif
}

// Tells the core that this is a spin loop.
inline void relax_cpu() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Prefetches the cache lines of the `bytes` bytes at `from` for reading. The address may be invalid.
inline void prefetch(const void* from, std::size_t bytes) noexcept {
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(static_cast<const char*>(from) + at);
  asm volatile("");  // otherwise GCC removes calls of functions that only prefetch
}
// Prefetches cache lines to be written.
inline void prefetch_for_write(const void* from, std::size_t bytes) noexcept {
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(static_cast<const char*>(from) + at, 1);
  asm volatile("");
}

}  // namespace shmtree::platform
