// Counts the rows of the window that can be sampled, for one process. It counts a full and ready chunk once, and again
// when frames that its rows need leave the window. So a count costs the writers nothing, and costs the caller only the
// changes since the last count.
//
// Invariant: a row counts if it is ready and the `frames` - 1 slots before it are in the window, as far as its episode
// has them. The frames of a successor need no check, since they reach back no further than those of the row.
//
// Thread safety: any thread. A thread that finds another one counting counts all chunks itself.
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
  // Counts all chunks, without the cached counts.
  std::uint64_t count_all(const Store& store) const noexcept;

 private:
  struct Counted {
    std::uint8_t rows = 0;
    std::uint64_t needs = 0;  // earliest ticket of another chunk that its rows need; 0: none
  };
  struct Need {
    std::uint64_t needs = 0, ticket = 0;
    bool operator<(const Need& other) const noexcept { return needs > other.needs; }  // the earliest is on top
  };

  Counted count_chunk(const Store& store, std::uint64_t ticket, const Progress& now) const noexcept;
  std::uint64_t without_frames(const Store& store, std::uint64_t ticket, std::uint64_t& needs) const noexcept;
  void forget(const Store& store, std::uint64_t ticket) noexcept;
  bool update_chunk(const Store& store, std::uint64_t ticket);
  std::uint64_t count_changes(const Store& store);

  std::uint32_t frames_ = 1;
  std::atomic_flag busy_{};             // Stays set in a child forked during a count, which then counts all chunks.
  std::uint64_t head_ = 0, tail_ = 0;   // Range of tickets counted so far.
  std::uint64_t sum_ = 0;               // Rows counted in that range.
  std::vector<std::uint8_t> rows_;      // Rows counted in each chunk.
  std::vector<std::uint64_t> growing_;  // Tickets of chunks that may get more rows.
  std::vector<Need> needs_;             // Heap of the other chunks with rows that need earlier chunks.
};

}  // namespace shmtree::replay
