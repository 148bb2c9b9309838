// A small set of numbers, for draws without repetition.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace shmtree::replay {

class SlotSet {
 public:
  // Empty, with room for so many, and more of them later.
  void clear(std::size_t most = 0) {
    size_ = 0;
    cells_.assign(std::bit_ceil(2 * most + 2), kNone);
  }
  bool empty() const noexcept { return size_ == 0; }
  std::size_t size() const noexcept { return size_; }
  // False when it has it already.
  bool add(std::uint64_t number) {
    if (2 * size_ >= cells_.size()) grow();
    std::uint64_t& cell = cell_of(number);
    if (cell == number) return false;
    cell = number;
    ++size_;
    return true;
  }
  template <class Visit>
  void for_each(Visit visit) const {
    for (const std::uint64_t cell : cells_) {
      if (cell != kNone) visit(cell);
    }
  }
  bool contains(std::uint64_t number) const noexcept {
    return size_ != 0 && const_cast<SlotSet*>(this)->cell_of(number) == number;
  }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  void grow() {
    std::vector<std::uint64_t> before(std::max<std::size_t>(2 * cells_.size(), 16), kNone);
    cells_.swap(before);
    for (const std::uint64_t number : before) {
      if (number != kNone) cell_of(number) = number;
    }
  }
  // Where the number is, or would be.
  std::uint64_t& cell_of(std::uint64_t number) noexcept {
    const std::size_t mask = cells_.size() - 1;
    std::size_t at = (number * 0x9e3779b97f4a7c15u >> 32) & mask;
    while (cells_[at] != number && cells_[at] != kNone) at = (at + 1) & mask;
    return cells_[at];
  }

  std::vector<std::uint64_t> cells_;
  std::size_t size_ = 0;
};

}  // namespace shmtree::replay
