// Samples rows from one table of a replay buffer, copies them, and reports the probability of each.
//
// Invariants:
//   - A row is sampled only if the buffer has it and, in a table with leaves, its leaf has a weight.
//   - With `max_times`, the samplers of all processes together sample no row more often. A row counts as sampled even
//     if the process that sampled it was killed.
//   - A failed call has sampled nothing.
//
// Thread safety: one thread at a time; any number of samplers. A forked child continues with other random numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "replay/rows/gather.h"
#include "replay/sampling/random.h"
#include "replay/sampling/slot_set.h"
#include "replay/sampling/tables.h"

namespace shmtree::replay {

// Sampled rows: the index of each, and the weight of its leaf at that time, 1 in a table without leaves.
struct Sample {
  std::span<std::uint64_t> indices{};
  std::span<float> weights{};
};

class Sampler {
 public:
  static Result<std::unique_ptr<Sampler>> make(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
  virtual ~Sampler() = default;
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Samples rows, each at most once if `distinct`. Samplers in order of time or priority start again, in the same
  // order, after the last row. Returns kEmpty if there is no row, or if too few rows have samples left. Returns
  // kInvalid, with the numbers, for more distinct rows than there are.
  Status sample(const Sample& chosen, bool distinct);
  // Samples replacements for the rows marked in `gone`: they, or frames that they need, had left the window before they
  // were copied. The marked rows are not sampled again before the next sample().
  Status resample(const Sample& chosen, std::span<const bool> gone, bool distinct);
  // Undoes a sample that the caller did not use, so that rows with `max_times` may be sampled again.
  void put_back(const Sample& chosen) const noexcept;

  // Samples rows and copies them. Each element of `out` receives the output of the gather with the same index, and has
  // space for all rows of `chosen`. Replaces rows that were overwritten during the copy, so the batch is complete.
  // After an error, which is one of sample() or Gather::read(), nothing was sampled.
  Status sample_and_copy(const Gather& gather, const Sample& chosen, std::span<std::byte* const> out, bool distinct,
                         unsigned threads);

  // Computes for rows of the last sample the probability and the importance weight, (least / weight)^beta. `least` is
  // the smallest weight of these rows, or of all rows if `of_buffer`. Either output may be empty.
  void describe(const Sample& chosen, std::span<double> probabilities, std::span<float> importances, double beta,
                bool of_buffer);

  const Table& table() const noexcept { return (*tables_)[number_]; }
  // Returns the current weights of a sampler that samples by weight. Without priorities each row has the weight 1. Does
  // not sample. The first call with `with_least` makes a second tree, which later changes keep up to date. Returns
  // kOutOfMemory if there is no memory for it.
  struct Weights {
    double total = 0;
    double least = 0;  // only with `with_least`
  };
  Result<Weights> weigh(bool with_least);
  // The watch to pass to Tables::update() in the same thread; null if the sampler has none.
  virtual LeafWatch* watch() noexcept { return nullptr; }

 protected:
  Sampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed) noexcept;

  // Finds rows for the elements of `chosen` at `positions_`. Positions without a row stay in `positions_`.
  virtual Status find(const Sample& chosen, bool distinct) = 0;
  // Returns the sum of all weights at the last sample or renew_total().
  virtual double total() const noexcept = 0;
  // Updates total() to the current weights.
  virtual void renew_total() {}
  virtual double least() { return 1; }
  // Returns true if a sample counts towards `max_times`, so that put_back() has to undo it.
  virtual bool takes_leaves() const noexcept { return true; }

  // Result of trying to sample the row of a leaf.
  enum class Found { kRow, kNothing, kNotReady, kStale };
  // Samples the row of a leaf, unless it is gone, is not ready, or has no samples left.
  Found take_row(std::uint64_t slot, std::uint64_t word, std::uint32_t position, const Sample& chosen) const noexcept;
  // Adds the slots of rows that `chosen` has already, and returns their number.
  std::size_t add_kept(const Sample& chosen, SlotSet& slots) const;
  // Indices of the rows that resample() has replaced since sample().
  std::span<const std::uint64_t> refused() const noexcept { return refused_; }
  void add_refused(SlotSet& slots) const;

  const Store& store() const noexcept { return *tables_->store(); }
  Random& random() noexcept { return random_; }
  Error too_few(std::uint64_t wanted, std::uint64_t found) const;
  // Fills positions without a row with the rows already found, in their order, for samplers in order. Returns false if
  // none of them may be sampled again.
  bool fill_up(const Sample& chosen) const;

  const std::shared_ptr<Tables> tables_;
  const std::size_t number_;
  std::vector<std::uint32_t> positions_;
  std::vector<bool> is_wanted_;  // positions that the call was asked to fill

 private:
  Status find_all(const Sample& chosen, bool distinct);
  void key_anew_after_fork() noexcept;
  Status replace(const Gather& gather, const Sample& chosen, std::span<bool> gone, std::span<std::byte* const> out,
                 bool distinct);

  std::vector<std::uint64_t> refused_;
  const std::uint64_t seed_;
  Identity identity_;
  Random random_;
};

// Create the samplers from which Sampler::make() chooses. Throw std::bad_alloc.
using SamplerPtr = std::unique_ptr<Sampler>;
// Samples all rows of the window with the same probability. Ignores the leaves of the table.
SamplerPtr make_uniform_sampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
// Samples rows in proportion to the weights of their leaves.
SamplerPtr make_weighted_sampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
// Samples the oldest or the newest rows.
SamplerPtr make_fifo_lifo_sampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
// Samples the rows of the largest priorities.
SamplerPtr make_max_priority_sampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);

}  // namespace shmtree::replay
