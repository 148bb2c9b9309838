// Resources that the machine and its control groups have left, and identities of processes and threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shmtree::platform {

// Returns the bytes that can still be committed: the minimum of MemAvailable and, for every cgroup from ours up to the
// root, its limit minus its usage. Reads files in /proc and /sys: 30 us. May throw std::bad_alloc.
std::uint64_t available_memory_bytes();

// Returns the bytes that this process can still map under its own limit (RLIMIT_AS), or nothing without a limit.
std::optional<std::uint64_t> addresses_left();
// Returns the number in a file of the kernel, or nothing if there is no file or no number. May throw std::bad_alloc.
std::optional<std::uint64_t> read_number(const std::string& path);

unsigned usable_cores() noexcept;

// Lets another thread that waits for this core run first, if there is one.
void yield_core() noexcept;

int process_id() noexcept;
std::uint32_t user_id() noexcept;  // effective user id
// Returns the number of threads of this process; 0 if it is unknown. Asks /proc, without a descriptor.
std::uint32_t own_thread_count() noexcept;
int thread_id() noexcept;  // of the calling thread, in its PID namespace

// Fills `out` with random bytes from the kernel.
void random_bytes(unsigned char* out, std::uint64_t bytes) noexcept;

}  // namespace shmtree::platform
