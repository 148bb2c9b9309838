// Spinning before a thread goes to sleep: for a time that a program sets (SpinSetting, Spin), or adaptively (Spinner).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "platform/atomics.h"
#include "platform/clock.h"
#include "platform/dcheck.h"
#include "platform/machine.h"
#include "platform/never_destroyed.h"
#include "platform/wait_policy.h"
#include "platform/waiting.h"
#include "shmtree/base/result.h"

namespace shmtree::platform {

// The spin of one object, such as an end of a channel, and what its recent spins have shown. Valid if all bytes are 0.
//
// A thread that spins may keep the thread that it waits for from its core. It was preempted then, or its spins end in
// vain, because the other thread runs only once this one sleeps. So after a spin that was preempted, and after the last
// of kVainSpins in a row that ended in vain, the next waits sleep at once. At first these are kFirstSkips waits, then
// twice as many each time, up to kMaxSkips or kMaxVainSkips. A spin that succeeds halves the number.
//
// Thread-safe; a race costs one adjustment.
class SpinSetting {
 public:
  // Maximum duration of a spin. 0: the program asks for none.
  std::int64_t ns() const noexcept { return ns_.load(std::memory_order_relaxed); }
  // kInvalid: negative.
  Status set_ns(std::int64_t ns);
  // Takes the duration of another object's spin, such as that of the arena.
  void set_as(const SpinSetting& other) noexcept { ns_.store(other.ns(), std::memory_order_relaxed); }

  // True if the next wait must spin. Does not count cores: a process that spins is often pinned to one of several.
  bool is_due() noexcept {
    if (ns() == 0) return false;
    const std::int32_t left = skips_left_.load(std::memory_order_relaxed);
    if (left != 0) [[unlikely]]
      skips_left_.store(left - 1, std::memory_order_relaxed);
    return left == 0;
  }
  enum class Ended { kReady, kPreempted, kInVain, kAtDeadline };
  void note_spin(Ended how) noexcept {
    using namespace wait_policy;
    if (how == Ended::kAtDeadline) return;  // a longer wait might have succeeded
    const std::int32_t skips = skips_.load(std::memory_order_relaxed), vain = vain_.load(std::memory_order_relaxed);
    if (how == Ended::kReady) {
      if (vain != 0) vain_.store(0, std::memory_order_relaxed);
      if (skips != 0) skips_.store(skips / 2, std::memory_order_relaxed);
    } else if (how == Ended::kPreempted || vain + 1 >= kVainSpins) {
      const std::int32_t most = how == Ended::kPreempted ? kMaxSkips : kMaxVainSkips;
      skips_.store(std::clamp(2 * skips, kFirstSkips, most), std::memory_order_relaxed);
      skips_left_.store(skips_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    } else {
      vain_.store(vain + 1, std::memory_order_relaxed);
    }
  }

 private:
  std::atomic<std::int64_t> ns_{0};
  std::atomic<std::int32_t> skips_{0}, skips_left_{0};
  std::atomic<std::int32_t> vain_{0};  // spins in a row that ended in vain, up to kVainSpins - 1
};

// Converts a time that is not negative. A long one, such as infinity, becomes some centuries.
constexpr std::int64_t spin_ns_of(double seconds) noexcept {
  return static_cast<std::int64_t>(std::min(seconds, 9e9) * 1e9);
}
// Returns the spin that SHMTREE_SPIN sets for this process; 0 if it is not set. kInvalid: no number, or a negative one.
Result<std::int64_t> spin_ns_of_environment();

// The spin of one wait. It is cut into slices, between which the call checks for deaths and signals. Not thread safe.
class Spin {
 public:
  explicit Spin(const WaitContext& wait) noexcept
      : wait_(wait),
        setting_(wait.spin != nullptr && !wait.deadline.is_immediate() && wait.spin->is_due() ? wait.spin : nullptr) {}

  // False if this wait does not spin, or if its spin is over.
  bool is_on() const noexcept { return setting_ != nullptr; }
  void stop() noexcept { setting_ = nullptr; }
  // Polls for one slice at most. Returns true once ready() is true; ready() must call no hook of the wait.
  template <class Ready>
  bool poll(const Ready& ready) noexcept {
    const BlockingScope blocking(wait_.hooks);
    std::int64_t last_ns = 0;  // when this slice last read the clock
    for (std::int64_t slice_end_ns = 0;;) {
      for (int i = 0; i < wait_policy::kSpinPollsPerClock; ++i) {
        if (ready()) return note_success(last_ns);
        relax_cpu();
      }
      const std::int64_t now_ns = monotonic_ns();  // after the first polls, because many waits end within them
      if (end_ns_ == 0) {
        end_ns_ = now_ns + wait_.deadline.remaining_ns(setting_->ns());
        ends_at_deadline_ = end_ns_ - now_ns < setting_->ns();
      }
      if (last_ns == 0) slice_end_ns = std::min(end_ns_, now_ns + wait_policy::kSpinSliceNs);
      const bool was_preempted = last_ns != 0 && now_ns - last_ns > wait_policy::kPreemptedNs;
      if (was_preempted) return give_up(SpinSetting::Ended::kPreempted);
      if (now_ns >= end_ns_)
        return give_up(ends_at_deadline_ ? SpinSetting::Ended::kAtDeadline : SpinSetting::Ended::kInVain);
      if (now_ns >= slice_end_ns) return false;
      last_ns = now_ns;
    }
  }

 private:
  // Two sides that share a core preempt each other, and each finds its condition true when it runs again. The coarse
  // clock lags behind the precise one: it shows most of these preemptions, no false ones, and costs less.
  bool note_success(std::int64_t last_ns) noexcept {
    const bool was_preempted = last_ns != 0 && coarse_monotonic_ns() - last_ns > wait_policy::kPreemptedNs;
    setting_->note_spin(was_preempted ? SpinSetting::Ended::kPreempted : SpinSetting::Ended::kReady);
    return true;
  }
  bool give_up(SpinSetting::Ended how) noexcept {
    setting_->note_spin(how);
    stop();
    return false;
  }

  const WaitContext& wait_;
  SpinSetting* setting_;  // null: off
  std::int64_t end_ns_ = 0;
  bool ends_at_deadline_ = false;
};

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
// A spin that the program asks for (Spin) replaces the adaptive spin.
//
// Thread-safe; a race costs one adjustment.
class Spinner {
 public:
  // Spins until ready(), the number of messages or free slots, is not 0. Returns true if that happened. Does not spin
  // if there is only one core, if the deadline is immediate, if recent spins failed, or if the program asks for a spin.
  template <class Ready>
  bool until(const Ready& ready, std::uint64_t enough, const WaitContext& wait) noexcept {
    const bool is_asked = wait.spin != nullptr && wait.spin->ns() != 0;
    if (is_asked || wait.deadline.is_immediate() || !may_spin() || !is_due()) return false;
    const BlockingScope blocking(wait.hooks);
    const Outcome spin =
        spins(ready, std::min(enough, wait_policy::kEnoughMessages), wait.deadline.remaining_ns(wait_policy::kSpinNs));
    limit_tries(spin.is_ready && spin.took_ns < wait_policy::kPreemptedNs);
    return spin.is_ready;
  }

 private:
  static bool may_spin() noexcept { return computed_once<&usable_cores>() > 1; }

  struct Outcome {
    bool is_ready;
    std::int64_t took_ns;  // 0: too short to measure
  };

  template <class Ready>
  Outcome spins(const Ready& ready, std::uint64_t enough, std::int64_t spin_ns) noexcept {
    const std::int64_t begin = monotonic_ns();
    const auto took_ns = [begin] { return monotonic_ns() - begin; };
    if (const std::int64_t backoff = backoff_ns_.load(std::memory_order_relaxed); backoff != 0 && backoff < spin_ns) {
      while (took_ns() < backoff) relax();
      const std::uint64_t gathered = ready();
      limit_backoff(gathered == 0 ? 0
                                  : backoff * static_cast<std::int64_t>(enough) / static_cast<std::int64_t>(gathered));
      if (gathered != 0) return {true, took_ns()};
    }
    for (bool is_first = true;; is_first = false) {
      for (int i = 0; i < wait_policy::kPollsPerClock; ++i) {
        if (ready() == 0) {
          relax();
          continue;
        }
        if (is_first && enough == 1) return {true, 0};
        const std::int64_t took = took_ns();
        if (enough > 1 && took < wait_policy::kAtOnceNs) limit_backoff(wait_policy::kFirstBackoffNs);
        return {true, took};
      }
      if (const std::int64_t took = took_ns(); took >= spin_ns) return {ready() != 0, took};
    }
  }

  // Pauses for about 100 ns.
  static void relax() noexcept {
    for (int i = 0; i < 4; ++i) relax_cpu();
  }

  // Stores the backoff, or 0 if a backoff that long would cost more than it saves.
  void limit_backoff(std::int64_t backoff) noexcept {
    SHMTREE_DCHECK(backoff >= 0);
    backoff_ns_.store(backoff <= wait_policy::kMaxBackoffNs ? static_cast<std::int32_t>(backoff) : 0,
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
      failures_left_.store(left == 0 ? wait_policy::kFirstFailures : std::min(left + 1, wait_policy::kMaxFailures),
                           std::memory_order_relaxed);
      skips_.store(wait_policy::kFirstSkips, std::memory_order_relaxed);
      return;
    }
    failures_left_.store(std::max(left - 1, 0), std::memory_order_relaxed);
    skipped_.store(0, std::memory_order_relaxed);
    if (left != 0) return;
    skips_.store(std::min(skips_.load(std::memory_order_relaxed) * 2, wait_policy::kMaxSkips),
                 std::memory_order_relaxed);
  }

  std::atomic<std::int32_t> failures_left_{
      wait_policy::kFirstFailures};       // failed spins that are still allowed; 0: spinning has stopped for now
  std::atomic<std::int32_t> skipped_{0};  // waits without a spin since the last spin
  std::atomic<std::int32_t> skips_{wait_policy::kFirstSkips};
  std::atomic<std::int32_t> backoff_ns_{0};
};

}  // namespace shmtree::platform
