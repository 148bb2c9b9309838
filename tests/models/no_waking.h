// For models in which no thread sleeps. A thread that wakes up checks its condition again, so a call that sleeps is
// equivalent to a call that begins later. wake.cpp covers sleep and wake-up.
#pragma once

#include "memory/arena.h"
#include "model.h"

namespace shmtree::memory {

void notify_all(Event&) noexcept {}
void EventWait::arm() noexcept {}
EventWait::Wake EventWait::sleep() noexcept {
  model::assume(false);
  return Wake::kRecheck;
}

}  // namespace shmtree::memory

namespace shmtree::platform {

int futex_wake(const std::atomic<std::uint32_t>&, int) noexcept {
  return 0;
}
std::int64_t monotonic_ns() noexcept {
  return 1;
}
std::int64_t Deadline::remaining_ns(std::int64_t max_ns) const noexcept {
  return max_ns;
}

}  // namespace shmtree::platform
