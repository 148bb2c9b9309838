#include "platform/machine.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "platform/atomics.h"
#include "platform/clock.h"
#include "platform/file.h"
#include "platform/memory_limits.h"

namespace shmtree::platform {

std::optional<std::uint64_t> read_number(const std::string& path) {
  const std::string text = read_kernel_file(path);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;  // absent, or "max"
  return value;
}

std::optional<std::uint64_t> addresses_left() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  const std::uint64_t used = read_number("/proc/self/statm").value_or(0) * page_size();
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

unsigned usable_cores() noexcept {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<unsigned>(std::max(CPU_COUNT(&set), 1));
}

void yield_core() noexcept {
  sched_yield();
}

#if defined(SHMTREE_CRASH_POINTS)
void crash_now() noexcept {
  do {
    kill(getpid(), crash_signal);
  } while (crash_signal == SIGKILL);
}
#endif

int process_id() noexcept {
  return static_cast<int>(getpid());
}
std::uint32_t user_id() noexcept {
  return geteuid();
}
// The directory has a link for each thread, and two for itself. No descriptor is open, which a forked child would keep.
std::uint32_t own_thread_count() noexcept {
  struct stat task {};
  const bool is_counted = stat("/proc/self/task", &task) == 0 && task.st_nlink > 2;
  return is_counted ? static_cast<std::uint32_t>(task.st_nlink - 2) : 0;
}
int thread_id() noexcept {
  return static_cast<int>(gettid());
}

void random_bytes(unsigned char* out, std::uint64_t bytes) noexcept {
  std::uint64_t done = 0;
  while (done < bytes) {
    const ssize_t got = getrandom(out + done, bytes - done, 0);
    if (got > 0) done += static_cast<std::uint64_t>(got);
    if (got < 0 && errno != EINTR) break;
  }
  // A sandbox may forbid getrandom(). The bytes then still differ between calls and between processes, but an attacker
  // can predict them.
  std::uint64_t state = static_cast<std::uint64_t>(monotonic_ns()) ^ static_cast<std::uint64_t>(getpid()) << 40 ^
                        reinterpret_cast<std::uintptr_t>(out);
  for (; done < bytes; ++done) {
    state = (state ^ state >> 27) * 0x9e3779b97f4a7c15u + 1;
    out[done] = static_cast<unsigned char>(state >> 56);
  }
}

}  // namespace shmtree::platform
