// Draws from tables for tests.
#pragma once

#include <memory>
#include <vector>

#include "replay/sampling/sampler.h"
#include "support/tables.h"

namespace shmtree::test {

inline std::unique_ptr<replay::Drawer> new_drawer(const std::shared_ptr<Tables>& tables, std::size_t table = 0,
                                                  std::uint64_t seed = 42) {
  return replay::Drawer::make(tables, table, seed).value();
}

struct Draws {
  std::vector<std::uint64_t> indices;
  std::vector<float> weights;

  explicit Draws(std::size_t rows) : indices(rows), weights(rows) {}
  replay::Picks picks() { return {indices, weights}; }
  Status from(replay::Drawer& drawer, bool distinct = false) { return drawer.draw(picks(), distinct); }
};

}  // namespace shmtree::test
