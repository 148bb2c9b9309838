// Looking again for a moment before going to sleep.
#pragma once

#include <algorithm>
#include <atomic>

#include "platform/atomics.h"
#include "platform/machine.h"
#include "platform/waiting.h"

namespace shmtree::channel {

// Spins for as long as it has been paying off: twice as long when the condition came true meanwhile, half as long when
// it did not. Once it is not worth its while, only every 32nd wait tries again, then every 64th and so on: two sides
// that put each other to sleep answer too late for a short look to ever pay, so a try is as long as a spin can be.
// Thread safe; a race costs one adjustment.
class Spinner {
 public:
  // True when `condition` became true. With one core, or a deadline that is over, it is not waited for at all.
  template <class Condition>
  bool until(Condition condition, const platform::WaitContext& wait) noexcept {
    if (wait.deadline.is_immediate() || !may_spin()) return false;
    const std::int32_t spin = next_spin();
    if (spin == 0) return false;
    const platform::BlockingScope blocking(wait.hooks);
    const bool paid = spins(condition, wait.deadline.remaining_ns(spin));
    adjust(spin, paid);
    return paid;
  }

 private:
  static constexpr std::int32_t kMostNs = 50'000;  // longer than a wake-up takes, spinning cannot pay
  static constexpr std::int32_t kLeastNs = 5'000;
  static constexpr std::int32_t kFirstRest = 32;
  static constexpr std::int32_t kMostRest = 1024;

  static bool may_spin() noexcept {
    static const bool several = platform::usable_cores() > 1;
    return several;
  }

  template <class Condition>
  static bool spins(const Condition& condition, std::int64_t spin_ns) noexcept {
    const std::int64_t end = platform::monotonic_ns() + spin_ns;
    do {
      for (int i = 0; i < 32; ++i) {
        if (condition()) return true;
        platform::relax_cpu();
      }
      platform::yield_core();  // it may be the very core that the other side waits for
    } while (platform::monotonic_ns() < end);
    return false;
  }

  std::int32_t next_spin() noexcept {
    if (const std::int32_t spin = ns_.load(std::memory_order_relaxed); spin != 0) return spin;
    const std::int32_t waits = waits_.load(std::memory_order_relaxed) + 1;
    waits_.store(waits, std::memory_order_relaxed);
    return waits < rest_.load(std::memory_order_relaxed) ? 0 : kMostNs;
  }

  void adjust(std::int32_t spin, bool paid) noexcept {
    if (paid) {
      ns_.store(std::min(spin * 2, kMostNs), std::memory_order_relaxed);
      rest_.store(kFirstRest, std::memory_order_relaxed);
      return;
    }
    const bool was_a_try = ns_.load(std::memory_order_relaxed) == 0;
    const std::int32_t shorter = was_a_try || spin / 2 < kLeastNs ? 0 : spin / 2;
    ns_.store(shorter, std::memory_order_relaxed);
    waits_.store(0, std::memory_order_relaxed);
    if (was_a_try) {
      rest_.store(std::min(rest_.load(std::memory_order_relaxed) * 2, kMostRest), std::memory_order_relaxed);
    }
  }

  std::atomic<std::int32_t> ns_{20'000};  // 0: it does not pay
  std::atomic<std::int32_t> waits_{0};    // without a spin
  std::atomic<std::int32_t> rest_{kFirstRest};
};

}  // namespace shmtree::channel
