// A forked child that stops before any of the library's fork handlers runs in it.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "support/catch2.h"

namespace shmtree::test {

class HeldChild {
 public:
  // `body` returns the exit status of the child, which it reaches only after let_go().
  template <class Body>
  explicit HeldChild(Body body) {
    REQUIRE(pipe(go_on_) == 0);
    pid_ = fork();
    if (pid_ != 0) return;
    alarm(120);
    _exit(body());
  }
  HeldChild(const HeldChild&) = delete;
  HeldChild& operator=(const HeldChild&) = delete;
  ~HeldChild() {
    kill();
    for (int& end : go_on_) close(std::exchange(end, -1));
  }

  void let_go() { REQUIRE(write(go_on_[1], "", 1) == 1); }
  int exit_status() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    exit_status();
  }

 private:
  struct AtLoad {
    AtLoad() {
      pthread_atfork(nullptr, nullptr, [] {
        char byte;
        if (go_on_[0] >= 0) static_cast<void>(!read(go_on_[0], &byte, 1));
      });
    }
  };

  pid_t pid_ = -1;
  inline static int go_on_[2] = {-1, -1};
  // A child runs its handlers in the order of their registration. The library registers its own with the same priority.
  // The objects of the test are linked first, so this handler comes first.
  [[gnu::init_priority(101)]] inline static const AtLoad at_load_;
};

}  // namespace shmtree::test
