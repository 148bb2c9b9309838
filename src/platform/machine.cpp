#include "platform/machine.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "platform/atomics.h"
#include "platform/clock.h"

namespace shmtree::platform {

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
