// A child that can be killed between any two instructions.
#pragma once

#include <sys/ptrace.h>

#include <cerrno>
#include <csignal>

#include "support/arenas.h"
#include "support/catch2.h"

#if defined(SHMTREE_CRASH_POINTS)

namespace shmtree::test {

// The position of a child after a number of steps: before the next change, at it, or ended.
enum class Stepped { kThere, kAtNextChange, kEnded };

// A child that stops before its n-th change, and then runs one instruction at a time on request.
class SteppedChild {
 public:
  template <class Act>
  SteppedChild(std::int64_t change, Act act) : pid_(fork()) {
    if (pid_ == 0) {
      alarm(280);  // ends the child of a failed test
      if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(0);
      crash_signal = SIGSTOP;
      changes_until_crash.store(change);
      act();
      _exit(0);
    }
    await();
    // From now on, the child stops before each change.
    if (stopped_) ptrace(PTRACE_POKEDATA, pid_, &changes_until_crash, 1L);
  }
  ~SteppedChild() { kill_now(); }
  SteppedChild(const SteppedChild&) = delete;
  SteppedChild& operator=(const SteppedChild&) = delete;

  // Runs `instructions` instructions, or up to the next change.
  Stepped step(int instructions) {
    for (int i = 0; i < instructions && stopped_; ++i) {
      if (ptrace(PTRACE_SINGLESTEP, pid_, nullptr, nullptr) == 0) await();
      if (stopped_ && signal_ == SIGSTOP) return Stepped::kAtNextChange;
    }
    return stopped_ ? Stepped::kThere : Stepped::kEnded;
  }
  // Lets it run to its end, and returns its exit status; -1 if it stops at another change, or was killed.
  int finish() {
    if (stopped_ && ptrace(PTRACE_CONT, pid_, nullptr, nullptr) == 0) await();
    return exit_status_;
  }
  void kill_now() {
    if (!stopped_) return;
    kill(pid_, SIGKILL);
    await();
  }

 private:
  void await() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    stopped_ = WIFSTOPPED(status);
    signal_ = stopped_ ? WSTOPSIG(status) : 0;
    exit_status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int pid_;
  bool stopped_ = false;
  int signal_ = 0;
  int exit_status_ = -1;
};

// Returns true if children can be single-stepped. Otherwise prints the reason.
inline bool can_step() {
  if (under_valgrind() || kAddressSanitizer || kThreadSanitizer) {
    WARN("not single-stepped: most instructions would be those of the checker");
    return false;
  }
  std::atomic<std::uint32_t> word{0};
  SteppedChild child(1, [&] { store_relaxed(word, 1u); });
  if (child.step(3) == Stepped::kThere) return true;
  WARN("not single-stepped: this machine does not let a process trace its child");
  return false;
}

// Calls `kill_at(change, instructions)` until the child ends before it is killed. `kill_at` kills a child that many
// instructions after its n-th change, and returns the child's position. Covers about every `stride`-th instruction
// after each change, and fewer far from it. Returns the number of kills.
template <class KillAt>
int kill_everywhere(int stride, KillAt kill_at) {
  int kills = 0;
  for (std::int64_t change = 1;; ++change) {
    REQUIRE(change < 1'000);
    Stepped stepped = Stepped::kThere;
    for (int i = 1 + static_cast<int>(change % stride); stepped == Stepped::kThere; i += stride + i / 2) {
      stepped = kill_at(change, i);
      if (stepped == Stepped::kEnded) return kills;
      ++kills;
    }
  }
}

}  // namespace shmtree::test

#endif
