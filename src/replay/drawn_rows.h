// What was drawn from one object of a replay buffer, for its statistics.
//
// Thread safety: any number of threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <span>
#include <utility>

#include "platform/fork.h"

namespace shmtree::replay {

class DrawnRows {
 public:
  // Sums of ages and of how far versions were behind the newest one that was met by then, and the largest.
  struct Totals {
    std::uint64_t rows = 0;
    double ages = 0, most_age = 0, lags = 0, most_lag = 0;
  };

  // Rows of one batch; where there is a mask, those that it has. `newest` is the index of the row that was added last.
  void add(std::span<const std::uint64_t> indices, std::span<const std::int64_t> versions, std::span<const bool> mask,
           std::int64_t newest) noexcept {
    const auto is_there = [&](std::size_t i) { return mask.empty() || mask[i]; };
    const std::lock_guard guard(mutex_);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (is_there(i)) newest_version_ = std::max(newest_version_, versions[i]);
    }
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (!is_there(i)) continue;
      const auto age = static_cast<double>(std::max<std::int64_t>(newest - static_cast<std::int64_t>(indices[i]), 0));
      const auto lag = static_cast<double>(newest_version_) - static_cast<double>(versions[i]);
      ++totals_.rows;
      totals_.ages += age;
      totals_.lags += lag;
      totals_.most_age = std::max(totals_.most_age, age);
      totals_.most_lag = std::max(totals_.most_lag, lag);
    }
  }
  // A version that rows of this object's writers have from now on.
  void meet(std::int64_t version) noexcept {
    const std::lock_guard guard(mutex_);
    newest_version_ = std::max(newest_version_, version);
  }
  // Since the last call.
  Totals take() noexcept {
    const std::lock_guard guard(mutex_);
    return std::exchange(totals_, {});
  }

 private:
  platform::ForkSafeMutex mutex_;
  Totals totals_{};
  std::int64_t newest_version_ = std::numeric_limits<std::int64_t>::min();
};

}  // namespace shmtree::replay
