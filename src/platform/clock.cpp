#include "platform/clock.h"

#include <time.h>

#include <algorithm>

namespace shmtree::platform {
namespace {

std::int64_t read_clock(clockid_t id) noexcept {
  timespec now{};
  clock_gettime(id, &now);  // cannot fail for these clocks
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

std::int64_t monotonic_ns() noexcept {
  return read_clock(CLOCK_MONOTONIC);
}
std::int64_t coarse_monotonic_ns() noexcept {
  return read_clock(CLOCK_MONOTONIC_COARSE);
}

void sleep_ns(std::int64_t ns) noexcept {
  if (ns <= 0) return;
  const timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
  nanosleep(&time, nullptr);
}

Deadline Deadline::after_ns(std::int64_t ns) noexcept {
  if (ns <= 0) return immediate();
  const std::int64_t now = monotonic_ns();
  return Deadline{ns >= kNever - now ? kNever : now + ns};
}

std::int64_t Deadline::remaining_ns(std::int64_t max_ns) const noexcept {
  if (is_never()) return max_ns;
  if (is_immediate()) return 0;
  return std::min(at_ns_ - monotonic_ns(), max_ns);
}

}  // namespace shmtree::platform
