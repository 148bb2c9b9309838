#include "platform/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include "platform/atomics.h"
#include "platform/clock.h"
#include "platform/file.h"

namespace shmtree::platform {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

std::string read_file(const std::string& path) {
  std::string text;
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (file == nullptr) return text;
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, file.get())) > 0;) text.append(buffer, n);
  return text;
}

MemoryLeft available_to_all(const std::string& proc) {
  const std::string text = read_file(proc + "/meminfo");
  constexpr std::string_view kKey = "MemAvailable:";
  const std::size_t at = text.find(kKey);
  if (at == std::string::npos) return {kUnlimited, "the machine"};
  std::size_t from = at + kKey.size();
  while (from < text.size() && text[from] == ' ') ++from;
  std::uint64_t kib = 0;
  std::from_chars(text.data() + from, text.data() + text.size(), kib);
  return {kib << 10, "the machine (MemAvailable)"};
}

// The files of a memory controller.
struct Controller {
  const char *version, *limit_file, *usage_file;
};
constexpr Controller kVersion1{"v1", "memory.limit_in_bytes", "memory.usage_in_bytes"};
constexpr Controller kVersion2{"v2", "memory.max", "memory.current"};

// Lowers `left` to what `group` and each of its ancestors have left. Page cache that the kernel can drop counts as
// used, so the result is an underestimate.
void look_at_groups(const std::string& root, std::string group, const Controller& files, MemoryLeft& left) {
  for (;;) {
    const std::string folder = root + group + "/";
    const auto limit = read_number(folder + files.limit_file);
    const auto usage = read_number(folder + files.usage_file);
    const std::uint64_t bytes = limit && usage ? *limit - std::min(*limit, *usage) : kUnlimited;
    if (bytes < left.bytes) {
      left = {bytes, std::string("the memory limit of the control group (cgroup ") + files.version + ") " +
                         (group.empty() ? "/" : group) + ", " + std::to_string(*limit) + " bytes,"};
    }
    const std::size_t slash = group.rfind('/');
    if (group.empty() || slash == std::string::npos) return;
    group.resize(slash);
  }
}

}  // namespace

std::optional<std::uint64_t> read_number(const std::string& path) {
  const std::string text = read_file(path);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;  // absent, or "max"
  return value;
}

MemoryLeft memory_left(const std::string& proc, const std::string& cgroup) {
  MemoryLeft left = available_to_all(proc);
  const std::string groups = read_file(proc + "/self/cgroup");
  for (std::size_t from = 0; from < groups.size();) {
    const std::size_t end = std::min(groups.find('\n', from), groups.size());
    const std::string_view line(groups.data() + from, end - from);
    from = end + 1;
    const std::size_t colon = line.find(':');
    const std::size_t second = colon == line.npos ? line.npos : line.find(':', colon + 1);
    if (second == line.npos) continue;
    const std::string_view controllers = line.substr(colon + 1, second - colon - 1);
    std::string group(line.substr(second + 1));
    if (group == "/") group.clear();
    if (controllers.empty()) {
      look_at_groups(cgroup, std::move(group), kVersion2, left);
    } else if (controllers.find("memory") != controllers.npos) {
      look_at_groups(cgroup + "/memory", std::move(group), kVersion1, left);
    }
  }
  return left;
}

MemoryLeft memory_left() {
  return memory_left("/proc", "/sys/fs/cgroup");
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
std::uint32_t own_thread_count() noexcept {
  char text[512];
  const UniqueFd file(open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
  const ssize_t length = file.valid() ? read(file.get(), text, sizeof text - 1) : -1;
  if (length <= 0) return 0;
  text[length] = '\0';
  const char* field = strrchr(text, ')');  // the end of field 2; the name may contain spaces
  constexpr int kThreads = 20;
  for (int number = 2; field != nullptr && number < kThreads; ++number) {
    field = strchr(field, ' ');
    if (field != nullptr) ++field;
  }
  return field == nullptr ? 0 : static_cast<std::uint32_t>(strtoul(field, nullptr, 10));
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
