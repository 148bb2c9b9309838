// Limits of the memory of this process: the machine's memory, the limits of its control groups, and its own limit of
// addresses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shmtree::platform {

// Folders with the kernel's files. Tests replace them.
inline const char *proc_root = "/proc", *cgroup_root = "/sys/fs/cgroup";

// Names of the files in a control group's folder, and of the values in its memory.stat.
struct MemoryController {
  const char *what, *version;  // text for an error
  const char *limit_file, *usage_file;
  const char *inactive_file, *dirty, *writeback;
};

// One limit. Without a controller, it is the memory of the machine.
struct MemoryLimit {
  const MemoryController* controller = nullptr;
  std::string folder;       // of the control group, or of /proc
  std::string group;        // path of the control group
  std::uint64_t bytes = 0;  // the limit; unused for the machine
  std::uint64_t id = 0;     // identifies the control group on this machine, in every namespace; 0 for the machine
};

// Returns the machine's memory, then each limit of every control group from ours up to the root. May throw
// std::bad_alloc.
std::vector<MemoryLimit> memory_limits(const std::string& proc, const std::string& cgroup);

// Returns the bytes that can still be committed under the limit. Page cache that the kernel has not used recently
// counts as free, and so does all memory if the system has no such file. May throw std::bad_alloc.
std::uint64_t bytes_left(const MemoryLimit& limit);
// Returns the limit's name for an error.
std::string describe(const MemoryLimit& limit);

// Returns the minimum of bytes_left() over all of these limits: what can still be committed. Reads files in /proc and
// /sys: 30 us. May throw std::bad_alloc.
std::uint64_t available_memory_bytes();
// Returns the bytes that this process can still map under its own limit (RLIMIT_AS), or nothing without a limit.
std::optional<std::uint64_t> addresses_left();

}  // namespace shmtree::platform
