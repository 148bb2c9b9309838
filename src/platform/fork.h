// What survives a fork, and what must not.
#pragma once

#include <atomic>
#include <cstdint>

namespace shmtree::platform {

// Non-zero in a process whose library state belongs to it. It lives in a page that the kernel zeroes in every child,
// also those of clone() and of forks that run no handlers; the child's fork handler sets it again.
std::uint64_t process_stamp() noexcept;
// Sets it again in a child of a fork that ran no handlers, once what belonged to the parent has been forgotten.
void restore_process_stamp() noexcept;

// In the same child, before that: its threads that held a LeafMutex do not exist.
void release_leaf_mutexes() noexcept;

// Runs around every fork() of the process: `first` and `prepare` before it, `parent` and `child` after it in either
// process, all but `first` while every LeafMutex is held (so they take none). Once per process; the handlers stay.
using ForkHandler = void (*)();
void set_fork_handlers(ForkHandler first, ForkHandler prepare, ForkHandler parent, ForkHandler child);

// Runs in every forked child, also while every LeafMutex is held. The handlers stay. False: no memory.
bool call_in_children(ForkHandler handler) noexcept;

// A lock for a few instructions of process-private state. Never nested, so that fork can take all of them in any order
// and hand the child consistent state.
class LeafMutex {
 public:
  LeafMutex();
  ~LeafMutex();
  LeafMutex(const LeafMutex&) = delete;
  LeafMutex& operator=(const LeafMutex&) = delete;

  void lock() noexcept;
  bool try_lock() noexcept { return word_.exchange(1, std::memory_order_acquire) == 0; }
  void unlock() noexcept { word_.store(0, std::memory_order_release); }

 private:
  friend class LeafMutexes;
  std::atomic<std::uint32_t> word_{0};
  LeafMutex* previous_ = nullptr;
  LeafMutex* next_ = nullptr;
};

}  // namespace shmtree::platform
