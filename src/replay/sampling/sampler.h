// Samples rows from one table of a replay buffer: which rows, and how likely each of them was; and copies them.
//
// Invariants:
//   - A row is sampled only when its leaf has a weight, where the table has leaves, and the buffer says that it is
//     there.
//   - Where rows may be sampled `max_times`, no row is sampled more often, by all samplers of all processes together;
//     a row that was sampled by somebody who was killed counts as sampled.
//   - A sample that fails has taken nothing.
//
// Thread safety: one thread at a time; as many samplers as one likes. A forked child goes on with other random numbers.
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

// Of as many rows: their indices, and what the leaf of each weighed when it was sampled, 1 where there are no leaves.
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

  // Samples rows, each of them once when they are to be `distinct`. Those in order of time or priority come again, in
  // the same order, when all were sampled. kEmpty when no row, or too few of those that may be sampled some times only,
  // can be had now; kInvalid, with the numbers, for more distinct rows than there are.
  Status sample(const Sample& chosen, bool distinct);
  // Samples again for the rows that are marked: they had gone when they were copied, or look back to what has. They are
  // not sampled again before the next sample().
  Status resample(const Sample& chosen, std::span<const bool> gone, bool distinct);
  // They were not used after all: rows with `max_times` may be sampled again.
  void put_back(const Sample& chosen) const noexcept;

  // Samples rows and copies them: `out` says where each output of the gather goes, for as many rows as `chosen` has.
  // Rows that were overwritten meanwhile are sampled anew, so that a batch is whole or there is none. Errors as of
  // sample() and Gather::read(); then nothing was sampled.
  Status sample_and_copy(const Gather& gather, const Sample& chosen, std::span<std::byte* const> out, bool distinct,
                         unsigned threads);

  // Of rows as they were sampled last: the probability of each; how much it counts for who learns, (least /
  // weight)^beta. `of_buffer`: the least of all rows, not of these. Either may be empty.
  void describe(const Sample& chosen, std::span<double> probabilities, std::span<float> importances, double beta,
                bool of_buffer);

  const Table& table() const noexcept { return (*tables_)[number_]; }
  // Weights as they are now, of samplers that sample by weight: all weigh 1 where they have no priorities. Counts as no
  // sample. kOutOfMemory. The least one costs sums of its own, from the first call on that asks for it.
  struct Weights {
    double total = 0;
    double least = 0;  // nothing where it was not asked for
  };
  Result<Weights> weigh(bool with_least);
  // For Tables::update() by the same thread; null where there is none.
  virtual LeafWatch* watch() noexcept { return nullptr; }

 protected:
  Sampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed) noexcept;

  // Finds rows for the places of `chosen` that `positions_` names; those that it could not find stay there.
  virtual Status find(const Sample& chosen, bool distinct) = 0;
  // The sum of all weights, as of the last sample.
  virtual double total() const noexcept = 0;
  // Makes it that of now.
  virtual void renew_total() {}
  virtual double least() { return 1; }
  // Whether a sample takes something of a row's leaf, that is to be put back.
  virtual bool takes_leaves() const noexcept { return true; }

  // What came of a leaf that was chosen.
  enum class Found { kRow, kNothing, kNotReady, kStale };
  // The row of that leaf, unless it is not there, not ready, or was sampled often enough.
  Found take_row(std::uint64_t slot, std::uint64_t word, std::uint32_t position, const Sample& chosen) const noexcept;
  // Rows that `chosen` has already, when some are sampled again; how many.
  std::size_t add_kept(const Sample& chosen, SlotSet& slots) const;
  // Those that were refused since sample(), by their indices.
  std::span<const std::uint64_t> refused() const noexcept { return refused_; }
  void add_refused(SlotSet& slots) const;

  const Store& store() const noexcept { return *tables_->store(); }
  Random& random() noexcept { return random_; }
  Error too_few(std::uint64_t wanted, std::uint64_t found) const;
  // Of samples in order: those that were found come again, in their order, at the positions for which there was none.
  // False when none may be sampled again.
  bool fill_up(const Sample& chosen) const;

  const std::shared_ptr<Tables> tables_;
  const std::size_t number_;
  std::vector<std::uint32_t> positions_;
  std::vector<bool> is_wanted_;  // was among them at first

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

// Samplers of each kind, which Sampler::make() chooses from. Throw std::bad_alloc.
using SamplerPtr = std::unique_ptr<Sampler>;
// All rows of the window are as likely, and none is remembered, whatever leaves the table has.
SamplerPtr make_uniform_sampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
// Each row as likely as its leaf weighs.
SamplerPtr make_weighted_sampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
// The oldest or the newest rows.
SamplerPtr make_fifo_lifo_sampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
// The rows of the largest priorities.
SamplerPtr make_max_priority_sampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);

}  // namespace shmtree::replay
