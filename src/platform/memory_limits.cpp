#include "platform/memory_limits.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include "platform/file.h"

namespace shmtree::platform {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;  // version 1 shows a number of that size without a limit
constexpr std::uint64_t kStatErrorBytes = 256u << 10;       // per core: the kernel adds up memory.stat in batches

constexpr MemoryController kVersion1[] = {
    {"the memory limit", "v1", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_dirty",
     "total_writeback"},
    {"the limit of memory and swap", "v1", "memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes",
     "total_inactive_file", "total_dirty", "total_writeback"},
};
// Beyond memory.high, the kernel kills no process but stalls it, so that is a limit too.
constexpr MemoryController kVersion2[] = {
    {"the memory limit", "v2", "memory.max", "memory.current", "inactive_file", "file_dirty", "file_writeback"},
    {"memory.high", "v2", "memory.high", "memory.current", "inactive_file", "file_dirty", "file_writeback"},
};

// Returns the text of a file of the kernel; empty if there is none.
std::string read_kernel_file(const std::string& path) {
  std::string text;
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (file == nullptr) return text;
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, file.get())) > 0;) text.append(buffer, n);
  return text;
}

// Returns the number in a file of the kernel, or nothing if there is no file or no number.
std::optional<std::uint64_t> read_number(const std::string& path) {
  const std::string text = read_kernel_file(path);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;  // absent, or "max"
  return value;
}

// Returns the number after `key` at the beginning of a line, if there is one.
std::optional<std::uint64_t> value_of(std::string_view text, std::string_view key) {
  for (std::size_t at = 0; (at = text.find(key, at)) != text.npos; at += key.size()) {
    if (at != 0 && text[at - 1] != '\n') continue;
    at = text.find_first_not_of(' ', at + key.size());
    std::uint64_t value = 0;
    if (at != text.npos) std::from_chars(text.data() + at, text.data() + text.size(), value);
    return value;
  }
  return std::nullopt;
}

// Returns the bytes of page cache that the kernel drops before it kills a process.
std::uint64_t reclaimable(const MemoryLimit& limit) {
  const std::string stat = read_kernel_file(limit.folder + "memory.stat");
  const auto value = [&](const char* key) { return value_of(stat, std::string(key) + " ").value_or(0); };
  const std::uint64_t cached = value(limit.controller->inactive_file);
  const std::uint64_t unsure =
      value(limit.controller->dirty) + value(limit.controller->writeback) +
      kStatErrorBytes * static_cast<std::uint64_t>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L));
  return cached - std::min(cached, unsure);
}

void add_groups(const std::string& root, std::string group, const MemoryController (&controllers)[2],
                std::vector<MemoryLimit>& limits) {
  for (;;) {
    const std::string folder = root + group + "/";
    for (const MemoryController& controller : controllers) {
      const std::uint64_t bytes = read_number(folder + controller.limit_file).value_or(kNoLimit);
      struct stat status {};
      if (bytes >= kNoLimit || stat(folder.c_str(), &status) != 0) continue;
      limits.push_back({&controller, folder, group, bytes, status.st_ino});
    }
    const std::size_t slash = group.rfind('/');
    if (group.empty() || slash == std::string::npos) return;
    group.resize(slash);
  }
}

}  // namespace

std::vector<MemoryLimit> memory_limits(const std::string& proc, const std::string& cgroup) {
  std::vector<MemoryLimit> limits(1);
  limits[0].folder = proc + "/";
  const std::string groups = read_kernel_file(proc + "/self/cgroup");
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
      add_groups(cgroup, std::move(group), kVersion2, limits);
    } else if (controllers.find("memory") != controllers.npos) {
      add_groups(cgroup + "/memory", std::move(group), kVersion1, limits);
    }
  }
  return limits;
}

std::uint64_t bytes_left(const MemoryLimit& limit) {
  if (limit.controller == nullptr) {
    const auto kib = value_of(read_kernel_file(limit.folder + "meminfo"), "MemAvailable:");
    return kib ? *kib << 10 : kUnlimited;
  }
  const auto usage = read_number(limit.folder + limit.controller->usage_file);
  if (!usage) return kUnlimited;
  const std::uint64_t used = *usage - std::min(*usage, reclaimable(limit));
  return limit.bytes - std::min(limit.bytes, used);
}

std::string describe(const MemoryLimit& limit) {
  if (limit.controller == nullptr) return "the machine (MemAvailable)";
  return std::string(limit.controller->what) + " of the control group (cgroup " + limit.controller->version + ") " +
         (limit.group.empty() ? "/" : limit.group) + ", " + std::to_string(limit.bytes) + " bytes,";
}

std::uint64_t available_memory_bytes() {
  std::uint64_t least = kUnlimited;
  for (const MemoryLimit& limit : memory_limits(proc_root, cgroup_root)) least = std::min(least, bytes_left(limit));
  return least;
}

std::optional<std::uint64_t> addresses_left() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  const std::uint64_t used = read_number("/proc/self/statm").value_or(0) * page_size();
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

}  // namespace shmtree::platform
