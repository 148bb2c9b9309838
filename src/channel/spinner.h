// Looking again for a moment before going to sleep.
#pragma once

#include <algorithm>
#include <atomic>

#include "platform/atomics.h"
#include "platform/machine.h"
#include "platform/waiting.h"

namespace shmtree::channel {

// Spins for as long as it has been paying off: twice as long when the condition came true meanwhile, half as long when
// it did not. Thread safe; a race costs one adjustment.
class Spinner {
 public:
  // True when `condition` became true. With one core, or a deadline that is over, it is not waited for at all.
  template <class Condition>
  bool until(Condition condition, const platform::WaitContext& wait) noexcept {
    if (wait.deadline.is_immediate() || !may_spin()) return false;
    const std::int32_t spin = ns_.load(std::memory_order_relaxed);
    if (spin < kLeastNs) {
      ns_.store(spin + kLeastNs / 16, std::memory_order_relaxed);  // another try now and then
      return false;
    }
    const platform::BlockingScope blocking(wait.hooks);
    const std::int64_t end = platform::monotonic_ns() + wait.deadline.remaining_ns(spin);
    do {
      for (int i = 0; i < 16; ++i) {
        if (condition()) {
          ns_.store(std::min(spin * 2, kMostNs), std::memory_order_relaxed);
          return true;
        }
        platform::relax_cpu();
      }
    } while (platform::monotonic_ns() < end);
    ns_.store(spin / 2, std::memory_order_relaxed);
    return false;
  }

 private:
  static constexpr std::int32_t kMostNs = 50'000;  // longer than a wake-up takes, spinning cannot pay
  static constexpr std::int32_t kLeastNs = 200;
  static bool may_spin() noexcept {
    static const bool several = platform::usable_cores() > 1;
    return several;
  }

  std::atomic<std::int32_t> ns_{20'000};
};

}  // namespace shmtree::channel
