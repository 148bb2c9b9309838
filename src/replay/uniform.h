// One of the rows of the window, each as likely.
#pragma once

#include <algorithm>

#include "replay/random.h"
#include "replay/store.h"

namespace shmtree::replay {

// Chooses among all rows of the window in one walk over it. Returns 0 if there is none.
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

// Returns the index of a row, or 0 if there is none. Draws one by its number first; places that are not full, or have
// another ticket, make such draws fail, so a walk over all places follows after a few of them. Others may add faster
// than this walks: the window that it walked over is then gone, and it tries again, a few times.
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
