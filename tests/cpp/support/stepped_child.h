// A child that is killed between any two instructions.
#pragma once

#include <sys/ptrace.h>

#include <cerrno>
#include <csignal>

#include "support/arenas.h"

#if defined(SHMTREE_CRASH_POINTS)

namespace shmtree::test {

// A child that stops before its n-th change, then goes on one instruction at a time, as it is told.
class SteppedChild {
 public:
  template <class Act>
  SteppedChild(std::int64_t change, Act act) : pid_(fork()) {
    if (pid_ == 0) {
      alarm(280);  // a test that fails leaves nothing behind
      if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(0);
      crash_signal = SIGSTOP;
      changes_until_crash.store(change);
      act();
      _exit(0);
    }
    await();
  }
  ~SteppedChild() { kill_now(); }
  SteppedChild(const SteppedChild&) = delete;
  SteppedChild& operator=(const SteppedChild&) = delete;

  bool stopped() const { return stopped_; }
  void step() {
    if (stopped_ && ptrace(PTRACE_SINGLESTEP, pid_, nullptr, nullptr) == 0) await();
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
  }
  int pid_;
  bool stopped_ = false;
};

inline bool can_step() {
  std::atomic<std::uint32_t> word{0};
  SteppedChild child(1, [&] { store_relaxed(word, 1u); });
  for (int i = 0; i < 3; ++i) child.step();
  return child.stopped();
}

}  // namespace shmtree::test

#endif
