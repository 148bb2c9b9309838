// What survives a fork, and what must not.
#pragma once

#include <atomic>
#include <cstdint>

namespace shmtree::platform {

// Non-zero in a process whose library state belongs to it. It lives in a page that the kernel zeroes in every child,
// also those of clone() and of forks that run no handlers; the child's fork handler sets it again.
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
  const ForkHandlers* next = nullptr;  // those that were added before
};
// They are called from then on, for good; `handlers` stays where it is. Once is enough; more do nothing. A fork that
// has begun already may call `parent` or `child` without `prepare`.
void add_fork_handlers(ForkHandlers& handlers) noexcept;

// In a child of a fork that ran no handlers: lets go of every ForkSafeMutex, whose owners do not exist here, runs
// `orphan` and sets the stamp again. Elsewhere, and the second time, it does nothing.
void forget_parent() noexcept;

// A spinlock for a few instructions of process-private state. Fork takes all of them, the newest first, and hands the
// child consistent state: so whoever holds one may lock only older ones, and most lock none.
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
