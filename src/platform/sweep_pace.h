// When something that fills up is swept again: each time while it has few things, and after that when it has twice as
// many as the last time left. So what one more costs does not grow with their number.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>

namespace shmtree::platform {

class SweepPace {
 public:
  explicit constexpr SweepPace(std::size_t few) noexcept : few_(few), due_(few) {}
  bool is_due(std::size_t size) const noexcept { return size <= few_ || size >= due_; }
  void note_swept(std::size_t left) noexcept { due_ = std::max(few_, 2 * left); }

 private:
  std::size_t few_;
  std::size_t due_;
};

}  // namespace shmtree::platform
