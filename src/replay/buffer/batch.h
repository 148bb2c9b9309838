// A sampled batch: its memory, and the offset of each of its arrays.
//
// Thread safety: a Batch is for one thread at a time, a BatchPool for any number.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "platform/fork.h"
#include "replay/buffer/hindsight.h"
#include "replay/sampling/sequence_sampler.h"

namespace shmtree::replay {

// Reuses the memory of batches that are not referenced any more, because the first use of fresh pages costs more time
// than the copy into them.
class BatchPool : public std::enable_shared_from_this<BatchPool> {
 public:
  static constexpr std::size_t kAlignment = 64;

  BatchPool();
  // Returns at least `bytes` bytes with undefined content. The memory returns to the pool when its last reference is
  // dropped. Throws std::bad_alloc.
  std::shared_ptr<std::byte> take(std::size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* data) const noexcept;
  };
  struct Piece {
    std::unique_ptr<std::byte, Free> data{};
    std::size_t bytes = 0;
  };
  static Piece make(std::size_t bytes);
  Piece find(std::size_t bytes) noexcept;
  void give_back(Piece piece) noexcept;

  platform::ForkSafeMutex mutex_;
  std::vector<Piece> pieces_;  // the most recently used one is last
};

// Options of one sample.
struct SampleTerms {
  std::size_t rows = 0, table = 0;
  bool distinct = false;
  unsigned threads = 1;
  double beta = 0.4;
  bool of_buffer = false;                // importances are relative to all rows, not to those of the batch
  std::optional<Hindsight> hindsight{};  // of single rows
  // Options of a sample of sequences. `rows` is then the number of sequences.
  std::size_t length = 0;  // rows of a sequence, with the burn-in; 0: single rows
  std::size_t stride = 1;  // distance from one row to the next
  bool any_first = true;   // the chosen rows are uniform, not by the table
  Partial partial = Partial::kPad;
  std::size_t burn_in = 0;  // rows before the chosen one

  // Returns true if the table chooses the rows. The batch then has weights.
  bool by_table() const noexcept { return length == 0 || !any_first; }
  SequenceOptions sequences() const noexcept { return {length, stride, partial, burn_in, distinct}; }
  std::size_t all_rows() const noexcept { return length == 0 ? rows : rows * length; }
};

class Batch {
 public:
  static constexpr std::size_t kMaxRows = std::size_t{1} << 31;
  // Returns the approximate bytes of a batch per row, including indices, weights and so on.
  static std::size_t row_bytes(const Buffer& buffer) noexcept;

  // Allocates the memory of the batch. Without `has_data`, there is no memory for the data of the rows. Throws
  // std::bad_alloc.
  Batch(std::shared_ptr<Buffer> buffer, BatchPool& pool, const SampleTerms& terms, bool has_data);

  // Samples rows, and writes the data to `out` unless that is empty. Blocks until there are rows, and until the rate
  // limiter allows the sample. Returns kEmpty at the deadline, kInterrupted, or kPeerDied if all writers were killed
  // and Spec::raises_on_death is set. Other errors: those of Sampler and SequenceSampler.
  Status sample(std::span<std::byte* const> out, const WaitContext& wait);
  // Sets the rewards of the relabelled rows, in their order. Unless `terminated` is empty, also sets whether they end
  // their episodes: the discount and the leaf that says so. The arrays given to sample() must still exist.
  void set_rewards(std::span<const double> rewards, std::span<const bool> terminated) const noexcept;
  // Returns the number of bytes that sample() copies.
  std::uint64_t copied_bytes() const noexcept;

  const SampleTerms& terms() const noexcept { return terms_; }
  const std::shared_ptr<std::byte>& memory() const noexcept { return memory_; }
  std::size_t bytes() const noexcept { return at_.back(); }

  // Each of these has one element per row, or none. All rows of a sequence have the values of its first row.
  std::span<std::uint64_t> indices() const noexcept { return numbers<std::uint64_t>(kIndices); }
  std::span<float> importances() const noexcept { return numbers<float>(kImportances); }        // with priorities only
  std::span<double> probabilities() const noexcept { return numbers<double>(kProbabilities); }  // with priorities only
  std::span<bool> mask() const noexcept { return numbers<bool>(kMask); }  // sequences only: true where there is a row
  // With hindsight only: for each row, the row that achieved its goal, or kNoRow if it has its own goal.
  std::span<std::uint64_t> goals() const noexcept { return numbers<std::uint64_t>(kGoals); }
  // Returns the array of an output of the data, which may be one that was given to sample().
  const std::byte* data(std::size_t number) const noexcept { return data_[number]; }
  // Returns the probability of each row, if all have the same.
  double even_probability() const noexcept {
    return 1 / static_cast<double>(std::max<std::uint64_t>(buffer_->store()->size(), 1));
  }
  // Writes the priority that each row had when it was sampled, 1 in a table without priorities.
  void priorities(std::span<float> out) const noexcept;
  // Returns the array of an output by its number (Spec::outputs()).
  std::byte* output(std::size_t number) const noexcept { return memory_.get() + at_[kOutputs + number]; }
  // Returns the index of the newest row at the time of the sample.
  std::int64_t newest() const noexcept { return newest_; }

 private:
  static constexpr std::size_t kIndices = 0, kWeights = 1, kProbabilities = 2, kImportances = 3, kMask = 4, kGoals = 5,
                               kOutputs = 6;

  std::size_t outputs() const noexcept { return buffer_->gather().options().outputs.size(); }
  void check_size() const;
  void plan(bool has_data);
  Status sample_rows(std::span<std::byte* const> destinations, const WaitContext& wait);
  Status sample_sequences(std::span<std::byte* const> destinations, const WaitContext& wait);
  Status sample_sequences_of(Sampler& sampler, std::span<std::byte* const> destinations, const WaitContext& wait);
  template <class Number>
  std::span<Number> numbers(std::size_t part) const noexcept {
    return {reinterpret_cast<Number*>(memory_.get() + at_[part]), at_[part + 1] == at_[part] ? 0 : terms_.all_rows()};
  }

  const std::shared_ptr<Buffer> buffer_;
  const SampleTerms terms_;
  std::vector<std::size_t> at_;  // offset of each part, then the total size
  std::shared_ptr<std::byte> memory_;
  std::vector<std::byte*> data_;  // array of each output, in memory_ or of the caller
  std::int64_t newest_ = 0;
};

}  // namespace shmtree::replay
