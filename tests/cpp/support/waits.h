// Observes the waits of a call, independently of the machine's load.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "platform/clock.h"
#include "platform/waiting.h"

namespace shmtree::test {

// Counts the sleeps of a call. A sleep without a wake-up lasts 1 to 50 ms.
struct CountedWaits final : platform::WaitHooks {
  int blocks = 0;
  void before_block() noexcept override { ++blocks; }
  void after_block() noexcept override {}
  bool interrupted() noexcept override { return false; }

  platform::WaitContext until(platform::Deadline deadline) noexcept { return {deadline, this}; }
};

// Forks at the first interruption of a call, as a signal handler may. The call continues in the child, and ends in the
// parent.
class ForkingWaits final : public platform::WaitHooks {
 public:
  void before_block() noexcept override {}
  void after_block() noexcept override {}
  bool interrupted() noexcept override {
    if (pid_ != -1) return false;
    pid_ = fork();
    if (pid_ == 0) alarm(280);
    return pid_ != 0;
  }

  platform::WaitContext until(platform::Deadline deadline) noexcept { return {deadline, this}; }
  bool in_child() const { return pid_ == 0; }
  // Waits for the child. Returns true if it ended with _exit(0).
  bool child_succeeded() const {
    int status = 0;
    return waitpid(pid_, &status, 0) == pid_ && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  int pid_ = -1;
};

// Returns the shortest duration of `act` in up to 50 tries, so that delays of the machine do not count. Stops after a
// try that took less than `enough_ms`.
template <class Act>
std::int64_t shortest_ms(std::int64_t enough_ms, Act act) {
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  for (int tries = 0; tries < 50 && shortest >= enough_ms; ++tries) {
    const std::int64_t began = platform::monotonic_ns();
    act();
    shortest = std::min(shortest, (platform::monotonic_ns() - began) / 1'000'000);
  }
  return shortest;
}

}  // namespace shmtree::test
