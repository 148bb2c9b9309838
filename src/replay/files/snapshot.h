// What is known of all places of a buffer at one time, while others write: enough to make another one of it.
#pragma once

#include <vector>

#include "replay/files/layout.h"
#include "replay/rows/store.h"

namespace shmtree::replay {

struct Snapshot {
  std::vector<StateEntry> places{};  // those with slots, by ticket
  Window window{};

  // A row that is ready in one of the places has its successors in the places: they were looked at later.
  static Snapshot of(const Store& store);
  // Those that have left the window meanwhile go.
  void forget_before(std::uint64_t head);
  // That may be sampled.
  std::uint64_t rows() const noexcept;
};

// Slots that the last ready rows of a place need may be missing in what was saved, or said to be: then fewer are ready.
// `places`: by ticket.
void correct_ready(std::vector<StateEntry>& places, std::uint64_t ahead);

}  // namespace shmtree::replay
