// A draw of rows with all that is copied of them: rows that were overwritten meanwhile are drawn anew, so that a batch
// is whole or there is none.
//
// Thread safety: one thread at a time, as its Drawer.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "replay/drawer.h"
#include "replay/gather.h"

namespace shmtree::replay {

class Sampling {
 public:
  // `out`: where each output of the gather goes, for as many rows as `picks` has. Nothing is owned.
  Sampling(Drawer& drawer, const Gather& gather, const Picks& picks, std::span<std::byte* const> out, bool distinct,
           unsigned threads) noexcept
      : drawer_(drawer), gather_(gather), picks_(picks), out_(out), distinct_(distinct), threads_(threads) {}

  // Errors as of Drawer::draw() and Gather::read(); then nothing was drawn.
  Status sample();

 private:
  Status replace(std::span<bool> gone);
  Result<bool> read_one(std::size_t at, std::span<bool> gone);

  Drawer& drawer_;
  const Gather& gather_;
  const Picks picks_;
  const std::span<std::byte* const> out_;
  const bool distinct_;
  const unsigned threads_;
};

}  // namespace shmtree::replay
