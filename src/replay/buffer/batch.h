// A batch that is sampled: its memory, and where in it each of its arrays lies.
//
// Thread safety: a Batch is for one thread at a time, a BatchPool for any number.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/fork.h"
#include "replay/buffer/buffer.h"

namespace shmtree::replay {

// Memory that batches are sampled into, and that is used again when nobody has it any more: fresh pages cost more than
// the copy into them.
class BatchPool : public std::enable_shared_from_this<BatchPool> {
 public:
  static constexpr std::size_t kAlignment = 64;

  BatchPool();
  // At least so many bytes, of any content. Whoever lets go of the last of it gives it back. Throws std::bad_alloc.
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
  std::vector<Piece> pieces_;  // the one that was used last at the end
};

// How rows are sampled.
struct SampleTerms {
  std::size_t rows = 0, table = 0;
  bool distinct = false;
  unsigned threads = 1;
  double beta = 0.4;
  bool of_buffer = false;  // importances are relative to all rows, and not to the batch
  // Of sequences, `rows` is how many there are: rows after the first one, from one to the next, and whether fewer do.
  std::size_t length = 0;  // 0: single rows
  std::size_t stride = 1;
  bool may_be_partial = true;
  bool any_first = true;  // they begin with any row, each as likely, and not with those that the table samples

  // Whether the table samples: then rows are told how likely that was.
  bool by_table() const noexcept { return length == 0 || !any_first; }
  std::size_t all_rows() const noexcept { return length == 0 ? rows : rows * length; }
};

class Batch {
 public:
  static constexpr std::size_t kMostRows = std::size_t{1} << 31;
  // Of each row that is sampled, with what is told of it.
  static std::size_t row_bytes(const Buffer& buffer) noexcept;

  // Memory for it; not for its data when that goes elsewhere. Throws std::bad_alloc.
  Batch(std::shared_ptr<Buffer> buffer, BatchPool& pool, const SampleTerms& terms, bool has_data);

  // Samples rows. `out`: where the data go, or nothing. Waits for rows, and for a credit of the rate limiter: kEmpty at
  // the deadline, kInterrupted, kPeerDied when all who added were killed and it is told (Spec); others as of Sampler
  // and SequenceSampler.
  Status sample(std::span<std::byte* const> out, const WaitContext& wait);
  // How many are copied for that.
  std::uint64_t copied_bytes() const noexcept;

  const SampleTerms& terms() const noexcept { return terms_; }
  const std::shared_ptr<std::byte>& memory() const noexcept { return memory_; }
  std::size_t bytes() const noexcept { return at_.back(); }

  // All of these are of as many as there are rows, or of none. Rows of a sequence have what its first one has.
  std::span<std::uint64_t> indices() const noexcept { return numbers<std::uint64_t>(kIndices); }
  std::span<float> importances() const noexcept { return numbers<float>(kImportances); }        // where rows differ
  std::span<double> probabilities() const noexcept { return numbers<double>(kProbabilities); }  // the same
  std::span<bool> mask() const noexcept { return numbers<bool>(kMask); }  // of sequences: where there is a row
  // The probability of each row, where all are as likely.
  double even_probability() const noexcept {
    return 1 / static_cast<double>(std::max<std::uint64_t>(buffer_->store()->size(), 1));
  }
  // The priority that each row had, 1 where there are none: as many as `out` has.
  void priorities(std::span<float> out) const noexcept;
  // An output by its number (Spec::outputs()).
  std::byte* output(std::size_t number) const noexcept { return memory_.get() + at_[kOutputs + number]; }
  // The index of the row that was added last when it was sampled.
  std::int64_t newest() const noexcept { return newest_; }

 private:
  static constexpr std::size_t kIndices = 0, kWeights = 1, kProbabilities = 2, kImportances = 3, kMask = 4,
                               kOutputs = 5;

  std::size_t outputs() const noexcept { return buffer_->gather().options().outputs.size(); }
  void check_size() const;
  void plan(bool has_data);
  Status sample_rows(std::span<std::byte* const> places, const WaitContext& wait);
  Status sample_sequences(std::span<std::byte* const> places, const WaitContext& wait);
  Status sample_sequences_of(Sampler& sampler, std::span<std::byte* const> places, const WaitContext& wait);
  template <class Number>
  std::span<Number> numbers(std::size_t part) const noexcept {
    return {reinterpret_cast<Number*>(memory_.get() + at_[part]), at_[part + 1] == at_[part] ? 0 : terms_.all_rows()};
  }

  const std::shared_ptr<Buffer> buffer_;
  const SampleTerms terms_;
  std::vector<std::size_t> at_;  // where each part begins; the last is the end
  std::shared_ptr<std::byte> memory_;
  std::int64_t newest_ = 0;
};

}  // namespace shmtree::replay
