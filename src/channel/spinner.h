// Adaptive spinning before a thread goes to sleep.
#pragma once

#include <algorithm>
#include <atomic>

#include "platform/atomics.h"
#include "platform/dcheck.h"
#include "platform/machine.h"
#include "platform/never_destroyed.h"
#include "platform/spin.h"
#include "platform/wait_policy.h"
#include "platform/waiting.h"

namespace shmtree::channel {

namespace policy = platform::wait_policy;

// Spins before a sleep, for at most kSpinNs, which is what a wake-up costs. A balance of successful and failed spins
// decides if that pays. While it is positive, every wait spins. Otherwise one wait in 32 tries again, and each failed
// try doubles that interval, up to kMaxSkips; a successful try resets it. The duration of a spin is fixed, since one
// late message must not cut all later spins short.
//
// A spin does not yield its core. If it yielded, a busy process of another program would keep the core for a whole time
// slice of milliseconds, and a wait of microseconds would take as long. If both sides share one core, spins fail and
// stop soon. A spin counts as failed if its thread was preempted, even if its condition became true: a sleeping thread
// would have been woken sooner.
//
// A side that has caught up with the other one polls cache lines that the other one writes, message by message, which
// halves the speed of both. So after a wait that succeeds at once, the next waits begin with a backoff. It reads
// nothing until about `enough` messages, or free slots, have accumulated.
//
// A spin that the program asks for (platform/spin.h) replaces the adaptive spin.
//
// Thread-safe; a race costs one adjustment.
class Spinner {
 public:
  // Spins until ready(), the number of messages or free slots, is not 0. Returns true if that happened. Does not spin
  // if there is only one core, if the deadline is immediate, if recent spins failed, or if the program asks for a spin.
  template <class Ready>
  bool until(const Ready& ready, std::uint64_t enough, const platform::WaitContext& wait) noexcept {
    const bool is_asked = wait.spin != nullptr && wait.spin->ns() != 0;
    if (is_asked || wait.deadline.is_immediate() || !may_spin() || !is_due()) return false;
    const platform::BlockingScope blocking(wait.hooks);
    const Spin spin =
        spins(ready, std::min(enough, policy::kEnoughMessages), wait.deadline.remaining_ns(policy::kSpinNs));
    limit_tries(spin.is_ready && spin.took_ns < policy::kPreemptedNs);
    return spin.is_ready;
  }

 private:
  static bool may_spin() noexcept { return platform::computed_once<&platform::usable_cores>() > 1; }

  struct Spin {
    bool is_ready;
    std::int64_t took_ns;  // 0: too short to measure
  };

  template <class Ready>
  Spin spins(const Ready& ready, std::uint64_t enough, std::int64_t spin_ns) noexcept {
    const std::int64_t begin = platform::monotonic_ns();
    const auto took_ns = [begin] { return platform::monotonic_ns() - begin; };
    if (const std::int64_t backoff = backoff_ns_.load(std::memory_order_relaxed); backoff != 0 && backoff < spin_ns) {
      while (took_ns() < backoff) relax();
      const std::uint64_t gathered = ready();
      limit_backoff(gathered == 0 ? 0
                                  : backoff * static_cast<std::int64_t>(enough) / static_cast<std::int64_t>(gathered));
      if (gathered != 0) return {true, took_ns()};
    }
    for (bool is_first = true;; is_first = false) {
      for (int i = 0; i < policy::kPollsPerClock; ++i) {
        if (ready() == 0) {
          relax();
          continue;
        }
        if (is_first && enough == 1) return {true, 0};
        const std::int64_t took = took_ns();
        if (enough > 1 && took < policy::kAtOnceNs) limit_backoff(policy::kFirstBackoffNs);
        return {true, took};
      }
      if (const std::int64_t took = took_ns(); took >= spin_ns) return {ready() != 0, took};
    }
  }

  // Pauses for about 100 ns.
  static void relax() noexcept {
    for (int i = 0; i < 4; ++i) platform::relax_cpu();
  }

  // Stores the backoff, or 0 if a backoff that long would cost more than it saves.
  void limit_backoff(std::int64_t backoff) noexcept {
    SHMTREE_DCHECK(backoff >= 0);
    backoff_ns_.store(backoff <= policy::kMaxBackoffNs ? static_cast<std::int32_t>(backoff) : 0,
                      std::memory_order_relaxed);
  }

  bool is_due() noexcept {
    if (failures_left_.load(std::memory_order_relaxed) != 0) return true;
    const std::int32_t skipped = skipped_.load(std::memory_order_relaxed) + 1;
    skipped_.store(skipped, std::memory_order_relaxed);
    return skipped >= skips_.load(std::memory_order_relaxed);
  }

  void limit_tries(bool paid) noexcept {
    const std::int32_t left = failures_left_.load(std::memory_order_relaxed);
    if (paid) {
      failures_left_.store(left == 0 ? policy::kFirstFailures : std::min(left + 1, policy::kMaxFailures),
                           std::memory_order_relaxed);
      skips_.store(policy::kFirstSkips, std::memory_order_relaxed);
      return;
    }
    failures_left_.store(std::max(left - 1, 0), std::memory_order_relaxed);
    skipped_.store(0, std::memory_order_relaxed);
    if (left != 0) return;
    skips_.store(std::min(skips_.load(std::memory_order_relaxed) * 2, policy::kMaxSkips), std::memory_order_relaxed);
  }

  std::atomic<std::int32_t> failures_left_{
      policy::kFirstFailures};            // failed spins that are still allowed; 0: spinning has stopped for now
  std::atomic<std::int32_t> skipped_{0};  // waits without a spin since the last spin
  std::atomic<std::int32_t> skips_{policy::kFirstSkips};
  std::atomic<std::int32_t> backoff_ns_{0};
};

}  // namespace shmtree::channel
