// Copies the rows of a batch from shared memory into one array for each output: leaves of the rows, leaves of their
// successors, stacks of frames, and sums of rewards.
//
// Processes a batch in blocks of rows. While it copies one block, it prefetches the bytes of the next one and the
// shared words of the one after that. Large leaves of several rows are copied side by side (platform::SideBySide). As
// in a seqlock, it checks once at the end which rows were overwritten meanwhile.
//
// Thread safety: any number of threads.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "replay/rows/row_store.h"

namespace shmtree::replay {

enum class OutputKind : std::uint8_t {
  kHere,            // A leaf of the row.
  kSuccessor,       // The leaf n_step rows later, or at the end of the episode (Reach::successor).
  kStack,           // A leaf of the row and of earlier rows of its episode, oldest first.
  kSuccessorStack,  // The stack of the successor.
  kRewardSum,       // Sum of a leaf over n_step rows, times 1, gamma, gamma^2, ...; float32 or float64.
  kDiscount,        // Gamma to the number of rows summed; 0 if the episode terminated within them.
  kStream,          // int64: the row's stream.
  kStep,            // int64: number of rows that the stream had before it.
};

struct Output {
  OutputKind kind = OutputKind::kHere;
  std::size_t leaf = 0;        // Number of the leaf, if the output is of one.
  std::uint32_t frames = 1;    // Number of frames of a stack.
  bool repeats_first = false;  // Pads a stack at the start of an episode with the first frame, not with zeros.
  bool is_double = false;      // float64 sums and discounts instead of float32.
};

struct GatherOptions {
  std::vector<Output> outputs{};
  std::uint32_t n_step = 1;
  double gamma = 1;
};

class Gather {
 public:
  static constexpr std::uint32_t kMaxFrames = 1024;

  // Code::kInvalid if an output needs more successors than Shape::ahead, or a leaf that does not exist.
  static Result<Gather> create(std::shared_ptr<const Store> store, GatherOptions options);

  // Returns the size of an output, in bytes per row.
  std::uint64_t bytes(std::size_t output) const noexcept { return bytes_[output]; }
  const GatherOptions& options() const noexcept { return options_; }

  // Copies rows by their indices: output i of row n to out[i] + n * bytes(i). Returns the number of rows that are gone:
  // they or frames of theirs have left the window. It marks them in `gone`, which has one element per row; their output
  // is undefined. Uses up to `threads` threads. Returns kOutOfSharedMemory if this process cannot map the rows.
  Result<std::size_t> read(std::span<const std::uint64_t> indices, std::span<std::byte* const> out,
                           std::span<bool> gone, unsigned threads = 1) const;

 private:
  friend class GatherBlock;

  Gather(std::shared_ptr<const Store> store, GatherOptions options);
  enum class Outcome { kDone, kNoAddresses, kNoMemory };
  // A batch that several threads copy.
  struct Call {
    std::span<const std::uint64_t> indices;
    std::span<std::byte* const> out;
    std::span<bool> gone;
    std::span<std::uint64_t> earliest;  // tickets, or empty
  };
  Outcome read_part(const Call& call, std::size_t begin, std::size_t end) const noexcept;
  Outcome read_parts(const Call& call, unsigned threads) const;

  std::shared_ptr<const Store> store_;
  GatherOptions options_;
  std::vector<std::uint64_t> bytes_;
  std::vector<double> powers_;  // gamma^0 to gamma^n_step
  std::uint64_t row_bytes_ = 0;
  std::size_t block_ = 0;  // rows per block
  bool reaches_ = false, sums_ = false, wants_successor_ = false, provenance_ = false;
  std::uint32_t frames_here_ = 0, frames_after_ = 0;  // largest number of frames of any stack
  // Leaves to prefetch besides the records.
  std::vector<std::size_t> columns_here_, columns_after_;
  std::size_t sum_leaf_ = 0, stack_leaf_ = 0;
};

}  // namespace shmtree::replay
