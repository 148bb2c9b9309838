// One of the rows of the window, each as likely.
#pragma once

#include "replay/random.h"
#include "replay/store.h"

namespace shmtree::replay {

// Its index; 0 when there is none. Places are not full, or have another ticket: such draws are repeated, and after a
// few in vain all places are looked at.
inline std::uint64_t draw_uniformly(const Store& store, Random& random) noexcept {
  constexpr int kFewDraws = 64;
  const Shape& shape = store.shape();
  do {
    const Window window = store.window();
    const std::uint64_t first = window.head << shape.row_bits, count = (window.tail - window.head) << shape.row_bits;
    for (int tries = 0; count != 0 && tries < kFewDraws; ++tries) {
      const std::uint64_t index = first + random.below(count);
      if (store.has_row(shape.ticket_of(index), shape.slot_of(index))) return index;
    }
  } while (store.size() != 0);
  return 0;
}

}  // namespace shmtree::replay
