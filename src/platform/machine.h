// What the machine and its control groups have left.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shmtree::platform {

// Bytes that can still be committed, and what they are bounded by.
struct MemoryLeft {
  std::uint64_t bytes;
  std::string limit;  // in words, for an error
};
// The least of MemAvailable and, for every cgroup from ours up to the root, its limit less what it uses. Reads files of
// /proc and /sys: 30 us. May throw std::bad_alloc.
MemoryLeft memory_left();
// The same from the given roots, for tests: `proc` stands for /proc, `cgroup` for /sys/fs/cgroup.
MemoryLeft memory_left(const std::string& proc, const std::string& cgroup);
inline std::uint64_t available_memory_bytes() {
  return memory_left().bytes;
}

// Bytes that this process can still map by its own limit (RLIMIT_AS); nothing when there is none.
std::optional<std::uint64_t> addresses_left();
// What a file of the kernel's says; nothing when it is not there or says no number. May throw std::bad_alloc.
std::optional<std::uint64_t> read_number(const std::string& path);

unsigned usable_cores() noexcept;

// Lets another thread that waits for this very core go first, if there is one.
void yield_core() noexcept;

int process_id() noexcept;
std::uint32_t user_id() noexcept;  // the effective one
// How many threads this process has; 0 where that is not to be seen. Reads a file of /proc.
std::uint32_t own_thread_count() noexcept;
int thread_id() noexcept;  // of the calling thread, as its PID namespace has it

// 16 random bytes from the kernel.
void random_bytes(unsigned char* out, std::uint64_t bytes) noexcept;

}  // namespace shmtree::platform
