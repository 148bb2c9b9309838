// One of the rows of the window, each as likely.
#pragma once

#include <algorithm>

#include "replay/random.h"
#include "replay/store.h"

namespace shmtree::replay {

// Returns the index of a random row, chosen in one walk over the window. Returns 0 if there is none.
inline std::uint64_t choose_among_all(const Store& store, const Window& window, Random& random) noexcept {
  const Shape& shape = store.shape();
  std::uint64_t chosen = 0, rows = 0;
  for (std::uint64_t ticket = window.head; ticket < window.tail; ++ticket) {
    const std::uint64_t ready = std::min<std::uint64_t>(store.progress(ticket).ready, shape.rows_per_place);
    for (std::uint64_t slot = 0; slot < ready; ++slot) {
      if (store.has_row(ticket, slot) && random.below(++rows) == 0) chosen = shape.index_of(ticket, slot);
    }
  }
  return chosen;
}

// Returns the index of a random row, or 0 if there is none. Tries random indices first. These fail at places that are
// not full, or that have another ticket, so after a few failures it walks over all places. Writers may be faster than
// the walk, so that the window it walked over is gone; then it starts again, a few times.
inline std::uint64_t draw_uniformly(const Store& store, Random& random) noexcept {
  constexpr int kFewDraws = 64, kMostWalks = 16;
  const Shape& shape = store.shape();
  for (int walks = 0; walks < kMostWalks; ++walks) {
    const Window window = store.window();
    const std::uint64_t first = window.head << shape.row_bits, count = (window.tail - window.head) << shape.row_bits;
    for (int tries = 0; count != 0 && tries < kFewDraws; ++tries) {
      const std::uint64_t index = first + random.below(count);
      if (store.has_row(shape.ticket_of(index), shape.slot_of(index))) return index;
    }
    const std::uint64_t index = choose_among_all(store, window, random);
    if (index != 0 || store.window().head == window.head) return index;
  }
  return 0;
}

}  // namespace shmtree::replay
