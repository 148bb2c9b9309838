// Snapshot of the state of all chunks of a buffer, taken while writers continue. It is sufficient to rebuild the
// buffer.
#pragma once

#include <vector>

#include "replay/files/layout.h"
#include "replay/rows/row_store.h"

namespace shmtree::replay {

struct Snapshot {
  std::vector<StateEntry> chunks{};  // chunks with slots, by ticket
  Window window{};

  // Takes a snapshot. It reads chunks with greater tickets later, so it has the successors of each ready row.
  static Snapshot of(const Store& store);
  // Removes the chunks before `head`, which have left the window meanwhile.
  void forget_before(std::uint64_t head);
  // Returns the number of rows that may be sampled.
  std::uint64_t rows() const noexcept;
};

// Reduces `ready` of each chunk if its last ready rows have no successors in `chunks`. Requires `chunks` sorted by
// ticket.
void correct_ready(std::vector<StateEntry>& chunks, std::uint64_t ahead);

}  // namespace shmtree::replay
