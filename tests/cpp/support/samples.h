// Samples from tables, for tests.
#pragma once

#include <memory>
#include <vector>

#include "replay/sampling/sampler.h"
#include "support/tables.h"

namespace shmtree::test {

inline std::unique_ptr<replay::Sampler> new_sampler(const std::shared_ptr<Tables>& tables, std::size_t table = 0,
                                                    std::uint64_t seed = 42) {
  return replay::Sampler::make(tables, table, seed).value();
}

struct Samples {
  std::vector<std::uint64_t> indices;
  std::vector<float> weights;

  explicit Samples(std::size_t rows) : indices(rows), weights(rows) {}
  replay::Sample sample() { return {indices, weights}; }
  Status from(replay::Sampler& sampler, bool distinct = false) { return sampler.sample(sample(), distinct); }
};

}  // namespace shmtree::test
