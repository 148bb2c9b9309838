// Samples sequences of rows: a random row, and those after it in its episode.
//
// Follows the links of the stream and searches no list of episodes, so the cost depends only on the length.
//
// Thread safety: one thread at a time; any number of SequenceSamplers.
#pragma once

#include <memory>
#include <span>

#include "replay/rows/gather.h"
#include "replay/sampling/random.h"
#include "replay/sampling/sampler.h"

namespace shmtree::replay {

enum class Partial {
  kPad,     // a sequence may be shorter, if its episode ends or no more rows are ready
  kRefuse,  // a sequence has the requested length
};

struct SequenceOptions {
  std::uint64_t length = 1;  // rows
  std::uint64_t stride = 1;  // distance between rows: 2 takes every other one
  Partial partial = Partial::kPad;
};

class SequenceSampler {
 public:
  SequenceSampler(std::shared_ptr<const Store> store, const SequenceOptions& options, std::uint64_t seed) noexcept
      : store_(std::move(store)), options_(options), random_(seed) {}

  // Samples mask.size() / length sequences, with first rows chosen uniformly. Writes the indices of one sequence after
  // the other. Where `mask` is false there is no row, and the index is 0. Returns kEmpty if there are no rows, or if
  // none of kMaxTries random rows is followed by enough rows. Returns kInvalid for a length or a stride of 0, and for
  // sizes that do not fit.
  Status sample(std::span<std::uint64_t> indices, std::span<bool> mask);
  // Also copies the rows, with zeros where there is none. Samples a sequence again if one of its rows left the window
  // meanwhile. Other errors: those of Gather::read().
  Status sample(const Gather& gather, std::span<std::uint64_t> indices, std::span<bool> mask,
                std::span<std::byte* const> out, unsigned threads = 1);
  // Takes the first rows from the sampler; `firsts` has one for each sequence. Errors: also those of Sampler::sample().
  // After an error nothing was sampled.
  Status sample(Sampler& sampler, const Sample& firsts, bool distinct, const Gather& gather,
                std::span<std::uint64_t> indices, std::span<bool> mask, std::span<std::byte* const> out,
                unsigned threads = 1);

 private:
  Status check(std::size_t indices, std::size_t mask) const;
  void choose(std::span<std::uint64_t> first) noexcept;
  // Samples one sequence. Tries the row `first` first, then random ones.
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
