// Rows of a batch, copied from where they lie into one array for each output: leaves of the rows themselves, of their
// successors, stacks of frames, sums of rewards.
//
// A batch goes through in blocks of rows. While one is copied, the next one's bytes are on their way into the caches,
// and the shared words of the one after that. Whether rows were overwritten meanwhile is looked up once, at the end.
//
// Thread safety: any number of threads.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "replay/rows/store.h"

namespace shmtree::replay {

enum class What : std::uint8_t {
  kHere,            // a leaf of the row
  kSuccessor,       // of the row n_step on; of the episode's last observation where it ends before, or of its last row
  kStack,           // of the row and of those before it in its episode, the oldest first
  kSuccessorStack,  // the same of the successor
  kRewardSum,       // of n_step rows' leaves, float32 or float64, those further on times gamma, gamma^2, ...
  kDiscount,  // float32 or float64: gamma to the number of rows summed; 0 where the episode terminated within them
  kStream,    // int64: the row's stream
  kStep,      // int64: how many rows its stream had before it
};

struct Output {
  What what = What::kHere;
  std::size_t leaf = 0;        // where one is meant
  std::uint32_t frames = 1;    // of a stack
  bool repeats_first = false;  // a stack at an episode's beginning is padded with the first frame, not with zeros
  bool is_double = false;      // of sums and discounts: float64, not float32
};

struct GatherOptions {
  std::vector<Output> outputs{};
  std::uint32_t n_step = 1;
  double gamma = 1;
};

class Gather {
 public:
  static constexpr std::uint32_t kMostFrames = 1024;

  // Code::kInvalid for what rows cannot give: successors that they do not wait for, leaves that there are not.
  static Result<Gather> create(std::shared_ptr<const Store> store, GatherOptions options);
  // Every leaf of the rows.
  static Result<Gather> of_rows(std::shared_ptr<const Store> store);

  // How many bytes an output has for each row.
  std::uint64_t bytes(std::size_t output) const noexcept { return bytes_[output]; }
  const GatherOptions& options() const noexcept { return options_; }

  // Copies rows by their indices: output i of row n to out[i] + n x its bytes. Those that are not there any more, or
  // frames of which are not, are marked in `gone`, which has as many, and have zeros or anything; how many.
  // kOutOfSharedMemory when this process has no address space for the rows. `threads`: how many may copy.
  Result<std::size_t> read(std::span<const std::uint64_t> indices, std::span<std::byte* const> out,
                           std::span<bool> gone, unsigned threads = 1) const;

 private:
  friend class GatherBlock;

  Gather(std::shared_ptr<const Store> store, GatherOptions options);
  enum class Outcome { kDone, kNoAddresses, kNoMemory };
  Outcome read_part(std::span<const std::uint64_t> indices, std::size_t first, std::span<std::byte* const> out,
                    std::span<bool> gone, std::span<std::uint64_t> earliest) const noexcept;
  Outcome read_parts(std::span<const std::uint64_t> indices, std::span<std::byte* const> out, std::span<bool> gone,
                     std::span<std::uint64_t> earliest, unsigned threads) const;

  std::shared_ptr<const Store> store_;
  GatherOptions options_;
  std::vector<std::uint64_t> bytes_;
  std::vector<double> powers_;  // of gamma, 0 to n_step
  std::uint64_t row_bytes_ = 0;
  std::size_t block_ = 0;  // rows
  bool reaches_ = false, sums_ = false, wants_successor_ = false, provenance_ = false;
  std::uint32_t frames_here_ = 0, frames_after_ = 0;  // the most of any stack
  // What is asked for ahead besides records.
  std::vector<std::size_t> columns_here_, columns_after_;
  std::size_t sum_leaf_ = 0, stack_leaf_ = 0;
};

}  // namespace shmtree::replay
