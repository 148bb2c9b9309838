// Looking again for a moment before going to sleep.
#pragma once

#include <algorithm>
#include <atomic>

#include "platform/atomics.h"
#include "platform/machine.h"
#include "platform/never_destroyed.h"
#include "platform/wait_policy.h"
#include "platform/waiting.h"

namespace shmtree::channel {

namespace policy = platform::wait_policy;

// Spins for up to as long as being woken takes, while that pays: while the condition comes true meanwhile more often
// than not. Once it does not, only every 32nd wait tries again, then every 64th and so on. A spin is never shorter: one
// late message would otherwise make every later spin end too early.
//
// A spin keeps its core. If it yielded, a busy process of some other program would keep the core for a whole time slice
// of some milliseconds, and a wait of microseconds would take as long. Where both sides share one core, spins fail and
// are given up. A spin counts as failed if the thread was preempted, even if its condition came true: a sleeping thread
// would have been woken sooner.
//
// A side that has caught up with the other one takes from it, message by message, the lines of memory that it looks at,
// which slows both down to half. So a wait that was over at once is followed by some that begin with a backoff, in
// which nothing is looked at until about `enough` messages, or places for them, have gathered.
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
    const Spin spin =
        spins(ready, std::min(enough, policy::kEnoughMessages), wait.deadline.remaining_ns(policy::kSpinNs));
    limit_tries(spin.is_ready && spin.took_ns < policy::kPreemptedNs);
    return spin.is_ready;
  }

 private:
  static bool may_spin() noexcept { return platform::computed_once<&platform::usable_cores>() > 1; }

  struct Spin {
    bool is_ready;
    std::int64_t took_ns;  // 0: too short to be measured
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
      for (int i = 0; i < policy::kLooksPerClock; ++i) {
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

  // A hundred nanoseconds or so.
  static void relax() noexcept {
    for (int i = 0; i < 4; ++i) platform::relax_cpu();
  }

  // None where it would be too long for what it saves.
  void limit_backoff(std::int64_t backoff) noexcept {
    backoff_ns_.store(backoff <= policy::kMostBackoffNs ? static_cast<std::int32_t>(backoff) : 0,
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
      failures_left_.store(left == 0 ? policy::kFirstFailures : std::min(left + 1, policy::kMostFailures),
                           std::memory_order_relaxed);
      skips_.store(policy::kFirstSkips, std::memory_order_relaxed);
      return;
    }
    failures_left_.store(std::max(left - 1, 0), std::memory_order_relaxed);
    skipped_.store(0, std::memory_order_relaxed);
    if (left != 0) return;
    skips_.store(std::min(skips_.load(std::memory_order_relaxed) * 2, policy::kMostSkips), std::memory_order_relaxed);
  }

  std::atomic<std::int32_t> failures_left_{
      policy::kFirstFailures};            // spins that may fail before there are none; 0: it does not pay
  std::atomic<std::int32_t> skipped_{0};  // waits without a spin since the last try
  std::atomic<std::int32_t> skips_{policy::kFirstSkips};
  std::atomic<std::int32_t> backoff_ns_{0};
};

}  // namespace shmtree::channel
