// Looking again for a moment before going to sleep.
#pragma once

#include <algorithm>
#include <atomic>

#include "platform/atomics.h"
#include "platform/machine.h"
#include "platform/waiting.h"

namespace shmtree::channel {

// Spins for up to as long as being woken takes, while that pays: while the condition comes true meanwhile more often
// than not. Once it does not, only every 32nd wait tries again, then every 64th and so on. A spin is never shorter: one
// late message would otherwise make every later spin end too early.
//
// A side that has caught up with the other one takes from it, message by message, the lines of memory that it looks at,
// which slows both down to half. So a wait that was over at once is followed by some that begin with a lull, in which
// nothing is looked at until about `enough` messages, or places for them, have gathered.
//
// Thread safe; a race costs one adjustment.
class Spinner {
 public:
  // `ready` says how many messages or places there are; true when there were some. With one core, or a deadline that is
  // over, it is not waited for at all.
  template <class Ready>
  bool until(const Ready& ready, std::uint64_t enough, const platform::WaitContext& wait) noexcept {
    if (wait.deadline.is_immediate() || !may_spin() || !is_due()) return false;
    const platform::BlockingScope blocking(wait.hooks);
    const bool paid = spins(ready, std::min(enough, kEnough), wait.deadline.remaining_ns(kSpinNs));
    adjust(paid);
    return paid;
  }

 private:
  static constexpr std::int64_t kSpinNs = 50'000;  // about what it takes to be woken
  static constexpr std::int32_t kFirstCredit = 3, kMostCredit = 8;
  static constexpr std::int32_t kFirstRest = 32;
  static constexpr std::int32_t kMostRest = 1024;
  static constexpr int kLooks = 8;  // before the core is offered to others
  static constexpr std::uint64_t kEnough = 32;
  static constexpr std::int64_t kAtOnceNs = 700, kFirstLullNs = 250, kMostLullNs = 10'000;

  static bool may_spin() noexcept {
    static const bool several = platform::usable_cores() > 1;
    return several;
  }

  template <class Ready>
  bool spins(const Ready& ready, std::uint64_t enough, std::int64_t spin_ns) noexcept {
    const std::int64_t begin = platform::monotonic_ns();
    if (const std::int64_t lull = lull_ns_.load(std::memory_order_relaxed); lull != 0 && lull < spin_ns) {
      while (platform::monotonic_ns() - begin < lull) relax();
      const std::uint64_t gathered = ready();
      adjust_lull(gathered == 0 ? 0 : lull * static_cast<std::int64_t>(enough) / static_cast<std::int64_t>(gathered));
      if (gathered != 0) return true;
    }
    do {
      for (int i = 0; i < kLooks; ++i) {
        if (ready() != 0) {
          if (enough > 1 && platform::monotonic_ns() - begin < kAtOnceNs) adjust_lull(kFirstLullNs);
          return true;
        }
        relax();
      }
      platform::yield_core();  // it may be the very core that the other side waits for
    } while (platform::monotonic_ns() - begin < spin_ns);
    return ready() != 0;
  }

  // A hundred nanoseconds or so.
  static void relax() noexcept {
    for (int i = 0; i < 4; ++i) platform::relax_cpu();
  }

  // None where it would be too long for what it saves.
  void adjust_lull(std::int64_t lull) noexcept {
    lull_ns_.store(lull <= kMostLullNs ? static_cast<std::int32_t>(lull) : 0, std::memory_order_relaxed);
  }

  bool is_due() noexcept {
    if (credit_.load(std::memory_order_relaxed) != 0) return true;
    const std::int32_t waits = waits_.load(std::memory_order_relaxed) + 1;
    waits_.store(waits, std::memory_order_relaxed);
    return waits >= rest_.load(std::memory_order_relaxed);
  }

  void adjust(bool paid) noexcept {
    const std::int32_t credit = credit_.load(std::memory_order_relaxed);
    if (paid) {
      credit_.store(credit == 0 ? kFirstCredit : std::min(credit + 1, kMostCredit), std::memory_order_relaxed);
      rest_.store(kFirstRest, std::memory_order_relaxed);
      return;
    }
    credit_.store(std::max(credit - 1, 0), std::memory_order_relaxed);
    waits_.store(0, std::memory_order_relaxed);
    if (credit != 0) return;
    rest_.store(std::min(rest_.load(std::memory_order_relaxed) * 2, kMostRest), std::memory_order_relaxed);
  }

  std::atomic<std::int32_t> credit_{kFirstCredit};  // spins that may fail before there are none; 0: it does not pay
  std::atomic<std::int32_t> waits_{0};              // without a spin
  std::atomic<std::int32_t> rest_{kFirstRest};
  std::atomic<std::int32_t> lull_ns_{0};
};

}  // namespace shmtree::channel
