// Decides when a growing container is swept again: on every call while it is small, then once it is twice as large as
// the last sweep left it. So the amortised cost per element is constant.
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
