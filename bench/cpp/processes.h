// The processes of one measurement. They are forked, wait for each other at barriers, and report when the measured part
// began and ended.
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <vector>

namespace shmtree::bench {

inline std::int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Ends the process, and so the program, if a check fails. A benchmark of wrong results is worthless.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "measurement failed: %s\n", what);
  std::fflush(stderr);
  std::abort();
}

// Memory that this process shares with the processes that it forks.
template <class T>
class Shared {
 public:
  Shared() {
    void* memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED, "no shared memory");
    at_ = new (memory) T{};
  }
  ~Shared() { munmap(static_cast<void*>(at_), sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* operator->() const { return at_; }

 private:
  T* at_;
};

class Processes {
 public:
  ~Processes() { require(running_.empty(), "processes were not waited for"); }

  // Forks a process that runs `act` and exits.
  template <class Act>
  void start(Act act) {
    std::fflush(nullptr);
    const pid_t pid = fork();
    require(pid >= 0, "fork");
    if (pid != 0) return running_.push_back(pid);
    alarm(kMaxSeconds);  // ends a measurement that hangs
    try {
      act();
    } catch (const std::exception& error) {
      require(false, error.what());
    }
    std::fflush(nullptr);
    _exit(0);
  }

  // Blocks until `count` processes have called it.
  void meet(int count) const {
    board_->met.fetch_add(1);
    while (board_->met.load() < count) sched_yield();
  }
  // The measured part begins at the first call of begin() and ends at the last call of end().
  void begin() const {
    std::int64_t none = 0;
    board_->began.compare_exchange_strong(none, now_ns());
  }
  void end() const {
    const std::int64_t now = now_ns();
    for (std::int64_t seen = board_->ended.load(); seen < now && !board_->ended.compare_exchange_weak(seen, now);) {
    }
  }
  struct Took {
    double seconds;      // between begin() and end()
    double cpu_seconds;  // of all processes, over their whole lifetimes
  };
  // Waits for all processes to exit.
  Took finish() {
    const double before = children_seconds();
    for (const pid_t pid : running_) {
      int status = 0;
      require(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "a process failed");
    }
    running_.clear();
    const std::int64_t ns = board_->ended.load() - board_->began.load();
    return {static_cast<double>(ns) * 1e-9, children_seconds() - before};
  }

 private:
  static constexpr unsigned kMaxSeconds = 120;
  struct Board {
    std::atomic<int> met{0};
    std::atomic<std::int64_t> began{0}, ended{0};
  };
  static double children_seconds() {
    rusage used{};
    getrusage(RUSAGE_CHILDREN, &used);
    return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
  }

  Shared<Board> board_;
  std::vector<pid_t> running_;
};

}  // namespace shmtree::bench
