// Handlers and mutexes that keep the library's state consistent across a fork.
#pragma once

#include <atomic>
#include <cstdint>

namespace shmtree::platform {

// Non-zero in a process that owns the library's state. The kernel zeroes its page in every child, also in those of
// clone() and of forks that run no handlers. The child's fork handler sets it again.
extern constinit std::atomic<std::uint64_t>* g_process_stamp;
inline std::uint64_t process_stamp() noexcept {
  return g_process_stamp->load(std::memory_order_relaxed);
}

// Functions that run around every fork() of the process: `first` and `prepare` before it; `parent` and `child` after
// it, in either process; `last` in the child, after `child`. `orphan` runs later, in a child of a fork that ran no
// handlers. All but `first` and `last` run while every ForkSafeMutex is held, so they must not lock, make or destroy
// one. Only one fork of the process runs them at a time. They throw nothing.
using ForkHandler = void (*)();
struct ForkHandlers {
  ForkHandler first = nullptr, prepare = nullptr, parent = nullptr, child = nullptr, last = nullptr, orphan = nullptr;
  const ForkHandlers* next = nullptr;  // handlers that were added before
};
// Adds handlers for the rest of the process's life; `handlers` must outlive it. Adding the same handlers again does
// nothing. A fork that is in progress may call `parent` or `child` without `prepare`.
void add_fork_handlers(ForkHandlers& handlers) noexcept;

// In a child of a fork that ran no handlers: releases every ForkSafeMutex, since their owners do not exist here, runs
// `orphan` and sets the stamp again. Otherwise does nothing. Idempotent.
void forget_parent() noexcept;

// A spinlock for a few instructions on process-private state. A fork locks all of them, the newest first, so the child
// gets consistent state. A thread that holds one may therefore lock only older ones; most lock none.
class ForkSafeMutex {
 public:
  ForkSafeMutex();
  ~ForkSafeMutex();
  ForkSafeMutex(const ForkSafeMutex&) = delete;
  ForkSafeMutex& operator=(const ForkSafeMutex&) = delete;

  void lock() noexcept;
  bool try_lock() noexcept { return word_.exchange(1, std::memory_order_acquire) == 0; }
  void unlock() noexcept { word_.store(0, std::memory_order_release); }

 private:
  friend class ForkSafeMutexes;
  std::atomic<std::uint32_t> word_{0};
  ForkSafeMutex* previous_ = nullptr;
  ForkSafeMutex* next_ = nullptr;
};

}  // namespace shmtree::platform
