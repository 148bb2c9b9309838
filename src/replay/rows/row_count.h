// Counts the rows of the window that can be sampled, for one process. A place that is full and ready is counted once,
// and again when frames that its rows need leave the window. So a count costs the writers nothing, and costs the caller
// only the changes since the last count.
//
// Invariant: a row counts if it is ready and the `frames` - 1 slots before it are in the window, as far as its episode
// has them. The frames of a successor need no check, since they reach back no further than those of the row.
//
// Thread safety: any thread; who finds another one at it looks at all places.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "replay/rows/layout.h"

namespace shmtree::replay {

class Store;

class RowCount {
 public:
  std::uint64_t count(const Store& store) noexcept;
  // Sets the largest number of frames of a leaf in a batch. Call it before the first count.
  void set_frames(std::uint32_t frames) noexcept { frames_ = frames; }
  // By looking at all places.
  std::uint64_t count_all(const Store& store) const noexcept;

 private:
  struct Counted {
    std::uint8_t rows = 0;
    std::uint64_t needs = 0;  // the earliest ticket of another place that its rows need; 0: none
  };
  struct Need {
    std::uint64_t needs = 0, ticket = 0;
    bool operator<(const Need& other) const noexcept { return needs > other.needs; }  // the earliest on top of a heap
  };

  Counted count_place(const Store& store, std::uint64_t ticket, const Progress& now) const noexcept;
  std::uint64_t without_frames(const Store& store, std::uint64_t ticket, std::uint64_t& needs) const noexcept;
  void forget(const Store& store, std::uint64_t ticket) noexcept;
  bool look(const Store& store, std::uint64_t ticket);
  std::uint64_t count_changes(const Store& store);

  std::uint32_t frames_ = 1;
  std::atomic_flag busy_{};  // stays set in a child of a fork that came in between: all places are looked at there
  std::uint64_t head_ = 0, tail_ = 0;     // tickets that were counted
  std::uint64_t sum_ = 0;                 // of their rows
  std::vector<std::uint8_t> rows_;        // by place, of those
  std::vector<std::uint64_t> unsettled_;  // those that may get more
  std::vector<Need> needs_;               // a heap of the other places whose rows need earlier places
};

}  // namespace shmtree::replay
