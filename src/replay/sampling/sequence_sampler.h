// Sequences of rows: some row, and those after it in its episode.
//
// What they cost depends on their length, and on nothing else: links are followed, no list of episodes is searched.
//
// Thread safety: one thread at a time; as many SequenceSamplers as one likes.
#pragma once

#include <memory>
#include <span>

#include "replay/rows/gather.h"
#include "replay/sampling/random.h"
#include "replay/sampling/sampler.h"

namespace shmtree::replay {

enum class Partial {
  kPad,     // a sequence may be shorter: its episode ends, or more rows are not there yet
  kRefuse,  // it is as long as asked for
};

struct SequenceOptions {
  std::uint64_t length = 1;  // rows
  std::uint64_t stride = 1;  // from one row to the next: 2 is every other one
  Partial partial = Partial::kPad;
};

class SequenceSampler {
 public:
  SequenceSampler(std::shared_ptr<const Store> store, const SequenceOptions& options, std::uint64_t seed) noexcept
      : store_(std::move(store)), options_(options), random_(seed) {}

  // Samples as many sequences as `mask` has lengths of, beginning with any row that is there, each as likely. Indices
  // of one after those of the other; where `mask` is false there is no row, and index 0. kEmpty when there are no rows,
  // or none in thousands of samples that is followed by enough; kInvalid for a length or a stride of 0, and for sizes
  // that do not fit.
  Status sample(std::span<std::uint64_t> indices, std::span<bool> mask);
  // The same, and copies the rows, with zeros where there is none. Sequences that have gone meanwhile are sampled anew.
  // Other errors as of Gather::read().
  Status sample(const Gather& gather, std::span<std::uint64_t> indices, std::span<bool> mask,
                std::span<std::byte* const> out, unsigned threads = 1);
  // The same of sequences whose first rows the sampler samples: `firsts` has as many as there are sequences. Errors as
  // of Sampler::sample(), too; then nothing was sampled.
  Status sample(Sampler& sampler, const Sample& firsts, bool distinct, const Gather& gather,
                std::span<std::uint64_t> indices, std::span<bool> mask, std::span<std::byte* const> out,
                unsigned threads = 1);

 private:
  Status check(std::size_t indices, std::size_t mask) const;
  void choose(std::span<std::uint64_t> first) noexcept;
  // Beginning with the row `first`, if it will do.
  Status sample_one(std::uint64_t first, std::span<std::uint64_t> indices, std::span<bool> mask);
  Status sample_one(std::span<std::uint64_t> indices, std::span<bool> mask) { return sample_one(0, indices, mask); }
  bool follow(std::uint64_t first, std::span<std::uint64_t> indices, std::span<bool> mask) const noexcept;
  bool follow_marked(const Sample& firsts, std::span<bool> marked, std::span<std::uint64_t> indices,
                     std::span<bool> mask) const noexcept;
  Error too_short() const;

  const std::shared_ptr<const Store> store_;
  const SequenceOptions options_;
  Random random_;
};

}  // namespace shmtree::replay
