// Samples sequences of rows: a random row with those before and after it in its episode, or whole episodes.
//
// Follows the links of the stream and searches no list of episodes, so the cost depends only on the length. Only whole
// episodes have to be searched: each call looks at every chunk of the window.
//
// Thread safety: one thread at a time; any number of SequenceSamplers.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "replay/rows/chain.h"
#include "replay/rows/gather.h"
#include "replay/sampling/random.h"
#include "replay/sampling/sampler.h"

namespace shmtree::replay {

enum class Partial {
  kPad,     // a sequence may be shorter, if its episode ends or no more rows are ready
  kRefuse,  // a sequence has the requested length
  kWhole,   // a sequence is an episode of at most the requested length, from its first row to its last
};

struct SequenceOptions {
  std::uint64_t length = 1;  // rows
  std::uint64_t stride = 1;  // distance between rows: 2 takes every other one
  Partial partial = Partial::kPad;
  // Part of the length: number of rows before the chosen one. Rows before the start of the episode, and those that have
  // left the window, are not there, also with kRefuse. 0 with kWhole.
  std::uint64_t burn_in = 0;
  bool distinct = false;  // with kWhole: samples no episode twice
};

class SequenceSampler {
 public:
  SequenceSampler(std::shared_ptr<const Store> store, const SequenceOptions& options, std::uint64_t seed) noexcept
      : store_(std::move(store)), options_(options), random_(seed) {}

  // Samples mask.size() / length sequences, with first rows chosen uniformly. Writes the indices of one sequence after
  // the other. Where `mask` is false there is no row, and the index is 0. Returns kEmpty if there are no rows, or if
  // none of kMaxTries random rows is followed by enough rows. Returns kInvalid, with the numbers, for options that are
  // out of range, for sizes that do not fit, and for more distinct episodes than there are.
  Status sample(std::span<std::uint64_t> indices, std::span<bool> mask);
  // Also copies the rows, with zeros where there is none. Samples a sequence again if one of its rows, other than those
  // of the burn-in, left the window meanwhile. Other errors: those of Gather::read().
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
  void find_ends();
  Status sample_whole(std::span<std::uint64_t> indices, std::span<bool> mask);
  // Samples one sequence. Tries the row `first` first, then random ones.
  Status sample_one(std::uint64_t first, std::span<std::uint64_t> indices, std::span<bool> mask);
  Status sample_one(std::span<std::uint64_t> indices, std::span<bool> mask) { return sample_one(0, indices, mask); }
  bool follow(std::uint64_t first, std::span<std::uint64_t> indices, std::span<bool> mask) const noexcept;
  bool follow_marked(const Sample& firsts, std::span<bool> marked, std::span<std::uint64_t> indices,
                     std::span<bool> mask) const noexcept;
  bool drop_lost(const Gather& gather, std::size_t at, std::span<std::uint64_t> indices, std::span<bool> mask,
                 std::span<const bool> gone, std::span<std::byte* const> out) const noexcept;
  Error too_short() const;

  const std::shared_ptr<const Store> store_;
  const SequenceOptions options_;
  Random random_;
  std::vector<Position> ends_;  // with kWhole: last rows of the episodes that may be sampled
};

}  // namespace shmtree::replay
