// How many rows of the window may be drawn, counted by one process for itself: places that are full and ready are
// looked at once. So it costs those who add nothing, and those who ask what changed since they asked last.
//
// Thread safety: any thread; who finds another one at it looks at all places.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace shmtree::replay {

class Store;

class RowCount {
 public:
  std::uint64_t count(const Store& store) noexcept;
  // By looking at all places.
  static std::uint64_t count_all(const Store& store) noexcept;

 private:
  void forget(const Store& store, std::uint64_t ticket) noexcept;
  bool look(const Store& store, std::uint64_t ticket) noexcept;
  std::uint64_t count_changes(const Store& store);

  std::atomic_flag busy_{};  // stays set in a child of a fork that came in between: all places are looked at there
  std::uint64_t head_ = 0, tail_ = 0;     // tickets that were counted
  std::uint64_t sum_ = 0;                 // of their rows
  std::vector<std::uint8_t> rows_;        // by place, of those
  std::vector<std::uint64_t> unsettled_;  // those that may get more
};

}  // namespace shmtree::replay
