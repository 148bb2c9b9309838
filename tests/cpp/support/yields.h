// Counts the yields of a test program. Include it in one source of the program.
#pragma once

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace shmtree::tests {

inline std::atomic<int> yields{0};
// Simulated time for which another process keeps the core at each yield.
inline std::atomic<std::int64_t> core_kept_ns{0};

}  // namespace shmtree::tests

// Replaces the C library's function in this program.
extern "C" int sched_yield() noexcept {
  ++shmtree::tests::yields;
  if (const std::int64_t kept = shmtree::tests::core_kept_ns; kept != 0)
    std::this_thread::sleep_for(std::chrono::nanoseconds(kept));
  return static_cast<int>(syscall(SYS_sched_yield));
}
