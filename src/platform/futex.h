// Waiting on, and waking through, a 32-bit word of shared memory.
#pragma once

#include <atomic>
#include <cstdint>

namespace shmtree::platform {

// Sleeps while `word` is `expected`, at most `timeout_ns`. Returns on a wake, a change, a signal or the timeout. The
// caller checks its condition again in every case.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t timeout_ns) noexcept;

// Wakes at most `count` sleepers of `word`, in any process. Returns the number that it woke.
int futex_wake(const std::atomic<std::uint32_t>& word, int count) noexcept;

}  // namespace shmtree::platform
