// Waiting on, and waking through, a 32-bit word of shared memory.
#pragma once

#include <atomic>
#include <cstdint>

namespace shmtree::platform {

// Sleeps while `word` holds `expected`, at most `timeout_ns`. Returns at a wake, a change, a signal or the timeout:
// the caller looks at its condition again in every case, so which one it was does not matter.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t timeout_ns) noexcept;

// Wakes at most `count` sleepers of `word`, in any process; returns how many there were.
int futex_wake(const std::atomic<std::uint32_t>& word, int count) noexcept;

}  // namespace shmtree::platform
