// Random numbers and random rows for samplers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "platform/dcheck.h"
#include "replay/rows/row_store.h"

namespace shmtree::replay {

// Counter-based random numbers (splitmix64, G. Steele et al., OOPSLA 2014). The key depends on the participant, so a
// forked child continues with other numbers.
class Random {
 public:
  explicit Random(std::uint64_t key) noexcept : state_(key * 0x9e3779b97f4a7c15u) {}
  std::uint64_t next() noexcept {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  // Returns a uniform number from 0 to bound - 1 (D. Lemire, ACM TOMACS 2019, with a bias of the order of 2^-64).
  std::uint64_t below(std::uint64_t bound) noexcept {
    SHMTREE_DCHECK(bound != 0);
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>(static_cast<Wide>(next()) * bound >> 64);
  }
  // Returns a uniform number in [0, 1).
  double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

// Returns the index of a random row, chosen in one walk over the window. Returns 0 if there is none.
inline std::uint64_t random_row_of_all(const Store& store, const Window& window, Random& random) noexcept {
  const Shape& shape = store.shape();
  std::uint64_t chosen = 0, rows = 0;
  for (std::uint64_t ticket = window.head; ticket < window.tail; ++ticket) {
    const std::uint64_t ready = std::min<std::uint64_t>(store.progress(ticket).ready, shape.rows_per_chunk);
    for (std::uint64_t slot = 0; slot < ready; ++slot) {
      if (store.has_row(ticket, slot) && random.below(++rows) == 0) chosen = shape.index_of(ticket, slot);
    }
  }
  return chosen;
}

// Returns the index of a random row, or 0 if there is none. Tries random indices first. Those miss in chunks that are
// not full, so after kFewTries misses the function walks over all chunks. If the walk finds no row, and the window has
// moved in the meantime, the function starts again, at most kMaxWalks times.
inline std::uint64_t random_row(const Store& store, Random& random) noexcept {
  constexpr int kFewTries = 64, kMaxWalks = 16;
  const Shape& shape = store.shape();
  for (int walks = 0; walks < kMaxWalks; ++walks) {
    const Window window = store.window();
    const std::uint64_t first = window.head << shape.row_bits, count = (window.tail - window.head) << shape.row_bits;
    for (int tries = 0; count != 0 && tries < kFewTries; ++tries) {
      const std::uint64_t index = first + random.below(count);
      if (store.has_row(shape.ticket_of(index), shape.slot_of(index))) return index;
    }
    const std::uint64_t index = random_row_of_all(store, window, random);
    if (index != 0 || store.window().head == window.head) return index;
  }
  return 0;
}

}  // namespace shmtree::replay
