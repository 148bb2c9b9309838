// Statistics of the rows sampled through one object of a replay buffer.
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

class SampleStatistics {
 public:
  // Sums and maxima over the sampled rows. The age of a row is the number of newer indices. Its lag is the difference
  // between the newest version seen and its version.
  struct Totals {
    std::uint64_t rows = 0;
    double ages = 0, max_age = 0, lags = 0, max_lag = 0;
  };

  // Adds the rows of one batch, only those in `mask` unless that is empty. `newest` is the index of the newest row.
  void add(std::span<const std::uint64_t> indices, std::span<const std::int64_t> versions, std::span<const bool> mask,
           std::int64_t newest) noexcept {
    const std::lock_guard guard(mutex_);
    if (mask.empty()) {
      add_those(indices, versions, newest, [](std::size_t) { return true; });
    } else {
      add_those(indices, versions, newest, [mask](std::size_t i) { return mask[i]; });
    }
  }
  // Records the version of new rows of this object's writers.
  void meet(std::int64_t version) noexcept {
    const std::lock_guard guard(mutex_);
    newest_version_ = std::max(newest_version_, version);
  }
  // Returns the totals since the last call, and resets them.
  Totals take() noexcept {
    const std::lock_guard guard(mutex_);
    return std::exchange(totals_, {});
  }

 private:
  template <class IsThere>
  void add_those(std::span<const std::uint64_t> indices, std::span<const std::int64_t> versions, std::int64_t newest,
                 IsThere is_there) noexcept {
    Totals totals = totals_;
    std::int64_t newest_version = newest_version_;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (is_there(i)) newest_version = std::max(newest_version, versions[i]);
    }
    const auto version_then = static_cast<double>(newest_version);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (!is_there(i)) continue;
      const auto age = static_cast<double>(std::max<std::int64_t>(newest - static_cast<std::int64_t>(indices[i]), 0));
      const double lag = version_then - static_cast<double>(versions[i]);
      ++totals.rows;
      totals.ages += age;
      totals.lags += lag;
      totals.max_age = std::max(totals.max_age, age);
      totals.max_lag = std::max(totals.max_lag, lag);
    }
    totals_ = totals;
    newest_version_ = newest_version;
  }

  platform::ForkSafeMutex mutex_;
  Totals totals_{};
  std::int64_t newest_version_ = std::numeric_limits<std::int64_t>::min();
};

}  // namespace shmtree::replay
