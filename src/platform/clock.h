// Monotonic time. The library never reads the wall clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>

namespace shmtree::platform {

// Returns CLOCK_MONOTONIC in nanoseconds. It is the same clock in every process of the machine.
std::int64_t monotonic_ns() noexcept;

// Returns the same clock at the resolution of the kernel's tick (1 to 10 ms), at a fifth of the cost.
std::int64_t coarse_monotonic_ns() noexcept;

// Sleeps between two checks of a condition that no wake-up announces. A signal ends the sleep early.
void sleep_ns(std::int64_t ns) noexcept;
inline void pause_briefly() noexcept {
  sleep_ns(1'000'000);
}

// A point in time after which waiting stops. Default: never.
class Deadline {
 public:
  constexpr Deadline() noexcept = default;
  static constexpr Deadline never() noexcept { return Deadline{}; }
  // Returns a deadline that has passed: the call must not wait.
  static constexpr Deadline immediate() noexcept { return Deadline{0}; }
  static Deadline after_ns(std::int64_t ns) noexcept;
  static Deadline after(std::optional<std::chrono::nanoseconds> timeout) noexcept {
    return timeout ? after_ns(timeout->count()) : never();
  }

  bool is_never() const noexcept { return at_ns_ == kNever; }
  bool is_immediate() const noexcept { return at_ns_ == 0; }
  bool passed() const noexcept { return remaining_ns() <= 0; }
  // Returns the nanoseconds left, at most `max_ns`; 0 or less after the deadline.
  std::int64_t remaining_ns(std::int64_t max_ns = std::numeric_limits<std::int64_t>::max()) const noexcept;

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  explicit constexpr Deadline(std::int64_t at_ns) noexcept : at_ns_(at_ns) {}
  std::int64_t at_ns_ = kNever;
};

}  // namespace shmtree::platform
