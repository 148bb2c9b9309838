// Child processes of a test. They start with fork, end with _exit, and communicate through pipes. The parent makes the
// checks. A child reports success by the return value of its function.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

namespace shmtree::test {

// Lets one process wait until another one opens the gate. Create it before the fork.
class Gate {
 public:
  Gate() {
    if (pipe(ends_) != 0) std::abort();
  }
  ~Gate() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open(std::uint64_t value = 0) const {
    if (write(ends_[1], &value, sizeof value) != sizeof value) std::abort();
  }
  // Returns the value with which the other process opened the gate. If that process has died, the alarm of the Child
  // ends the wait.
  std::uint64_t wait() const {
    std::uint64_t value = 0;
    while (read(ends_[0], &value, sizeof value) != sizeof value) {
    }
    return value;
  }
  bool is_open() const {
    pollfd entry{ends_[0], POLLIN, 0};
    return poll(&entry, 1, 0) == 1;
  }

 private:
  int ends_[2];
};

class Child {
 public:
  // `act` returns true on success.
  template <class Act>
  explicit Child(Act act) : pid_(fork()) {
    if (pid_ != 0) return;
    alarm(280);  // ends the child of a failed test; longer than any wait in a test
    _exit(act() ? 0 : 1);
  }
  ~Child() { kill_and_wait(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int pid() const { return pid_; }
  // Waits for the child. Returns true if its function returned true.
  bool succeeded() {
    wait();
    return WIFEXITED(status_) && WEXITSTATUS(status_) == 0;
  }
  bool was_killed() { return was_killed_by(SIGKILL); }
  bool was_killed_by(int signal) {
    wait();
    return WIFSIGNALED(status_) && WTERMSIG(status_) == signal;
  }
  void kill_and_wait() {
    if (!waited_) kill(pid_, SIGKILL);
    wait();
  }
  void signal(int number) const { kill(pid_, number); }
  void wait_until_stopped() const {
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
  }

 private:
  void wait() {
    if (!waited_) waitpid(pid_, &status_, 0);
    waited_ = true;
  }
  int pid_;
  int status_ = 0;
  bool waited_ = false;
};

// Returns the result of `act` in a child with a limit of setrlimit(2).
template <class Act>
bool succeeds_with_limit(int which, rlim_t limit, Act act) {
  Child child([&] {
    const rlimit both{limit, limit};
    return setrlimit(static_cast<__rlimit_resource_t>(which), &both) == 0 && act();
  });
  return child.succeeded();
}

inline bool under_valgrind() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("vgpreload") != line.npos) return true;
  }
  return false;
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

// Returns false under sanitizers and valgrind, which reserve more address space than any limit allows.
inline bool address_limit_works() {
  return !kAddressSanitizer && !kThreadSanitizer && !under_valgrind();
}

}  // namespace shmtree::test
