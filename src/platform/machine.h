// Identities of processes and threads, the processor, and random bytes. memory_limits.h has the memory.
#pragma once

#include <cstdint>

namespace shmtree::platform {

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
