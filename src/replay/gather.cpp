#include "replay/gather.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>

#include "platform/errors.h"
#include "platform/side_threads.h"
#include "replay/gather_block.h"

namespace shmtree::replay {

namespace {

constexpr std::uint64_t kSmallRow = 1024;                        // bytes, of which many are asked for at a time
constexpr std::size_t kLargeRows = 4;                            // of larger ones
constexpr std::uint64_t kWorthAThread = std::uint64_t{1} << 19;  // bytes: a thread takes as long to begin as 100 KB do

bool is_of_leaf(What what) noexcept {
  return what != What::kDiscount && what != What::kStream && what != What::kStep;
}
bool is_stack(What what) noexcept {
  return what == What::kStack || what == What::kSuccessorStack;
}

Status check(const Shape& shape, const GatherOptions& options, const Output& output) {
  if (is_of_leaf(output.what) && output.leaf >= shape.leaves.size()) {
    return invalid("leaf " + std::to_string(output.leaf) + " of rows that have " + std::to_string(shape.leaves.size()));
  }
  if (is_stack(output.what) && (output.frames == 0 || output.frames > Gather::kMostFrames)) {
    return invalid("a stack of " + std::to_string(output.frames) + " frames: 1 to " +
                   std::to_string(Gather::kMostFrames) + " are possible");
  }
  const bool after = output.what == What::kSuccessor || output.what == What::kSuccessorStack;
  const bool sums = output.what == What::kRewardSum || output.what == What::kDiscount;
  if ((after && options.n_step > shape.ahead) || (sums && options.n_step > shape.ahead + 1)) {
    return invalid("what comes " + std::to_string(options.n_step) + " rows later is asked for of rows that wait for " +
                   std::to_string(shape.ahead));
  }
  const std::uint64_t number = output.is_double ? 8 : 4;
  if (output.what == What::kRewardSum && shape.leaves[output.leaf].bytes % number != 0) {
    return invalid("sums of a leaf of " + std::to_string(shape.leaves[output.leaf].bytes) + " bytes");
  }
  return success();
}

}  // namespace

Gather::Gather(std::shared_ptr<const Store> store, GatherOptions options)
    : store_(std::move(store)), options_(std::move(options)) {
  for (const Output& output : options_.outputs) {
    const std::uint64_t leaf = is_of_leaf(output.what) ? store_->shape().leaves[output.leaf].bytes : 0;
    const bool after = output.what == What::kSuccessor || output.what == What::kSuccessorStack;
    const bool sums = output.what == What::kRewardSum, discount = output.what == What::kDiscount;
    bytes_.push_back(is_stack(output.what)           ? output.frames * leaf
                     : leaf != 0                     ? leaf
                     : discount && !output.is_double ? 4
                                                     : 8);
    row_bytes_ += bytes_.back();
    wants_successor_ = wants_successor_ || after;
    reaches_ = reaches_ || after || sums || discount;
    provenance_ = provenance_ || output.what == What::kStream || output.what == What::kStep;
    if (sums) sums_ = true, sum_leaf_ = output.leaf;
    if (is_stack(output.what)) stack_leaf_ = output.leaf;
    const bool has_column = is_of_leaf(output.what) && store_->shape().leaves[output.leaf].has_column;
    if (has_column && output.what == What::kHere) columns_here_.push_back(output.leaf);
    if (has_column && output.what == What::kSuccessor) columns_after_.push_back(output.leaf);
    std::uint32_t& most = after ? frames_after_ : frames_here_;
    if (is_stack(output.what)) most = std::max(most, output.frames);
  }
  for (std::uint32_t i = 0; i <= options_.n_step; ++i) powers_.push_back(std::pow(options_.gamma, i));
  block_ = row_bytes_ <= kSmallRow ? GatherBlock::kMostRows : kLargeRows;
}

Result<Gather> Gather::create(std::shared_ptr<const Store> store, GatherOptions options) try {
  if (options.n_step == 0 || options.n_step > kMostAhead) {
    return invalid(std::to_string(options.n_step) + " steps: 1 to " + std::to_string(kMostAhead) + " are possible");
  }
  if (options.outputs.empty()) return invalid("a batch of nothing");
  for (const Output& output : options.outputs) {
    Status fits = check(store->shape(), options, output);
    if (!fits) return std::move(fits).error();
  }
  return Gather(std::move(store), std::move(options));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<Gather> Gather::of_rows(std::shared_ptr<const Store> store) try {
  GatherOptions options;
  for (std::size_t leaf = 0; leaf < store->shape().leaves.size(); ++leaf) options.outputs.push_back({.leaf = leaf});
  return create(std::move(store), std::move(options));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// Some of the rows, from `first` on.
Gather::Outcome Gather::read_part(std::span<const std::uint64_t> indices, std::size_t first,
                                  std::span<std::byte* const> out, std::span<bool> gone,
                                  std::span<std::uint64_t> earliest) const noexcept try {
  GatherBlock blocks[2]{GatherBlock(*this), GatherBlock(*this)};
  const bool with_about = reaches_ || provenance_ || frames_here_ != 0 || store_->shape().finals;
  const auto piece = [&](std::size_t at) { return std::min(block_, indices.size() - std::min(at, indices.size())); };
  GatherBlock::fetch_words(*store_, indices.first(piece(0)), with_about);
  for (std::size_t at = 0, turn = 0; at < indices.size() + block_; at += block_, ++turn) {
    if (const std::size_t count = piece(at); count != 0) {
      const std::size_t after = at + count;
      GatherBlock::fetch_words(*store_, indices.subspan(after, piece(after)), with_about);
      GatherBlock& block = blocks[turn % 2];
      block.look_up(indices.subspan(at, count), gone.subspan(at, count),
                    earliest.empty() ? earliest : earliest.subspan(at, count));
      if (block.failed()) return Outcome::kNoAddresses;
      block.fetch();
    }
    if (turn > 0) blocks[(turn - 1) % 2].copy(first + at - block_, out);
  }
  return Outcome::kDone;
} catch (const std::bad_alloc&) {
  return Outcome::kNoMemory;
}

Gather::Outcome Gather::read_parts(std::span<const std::uint64_t> indices, std::span<std::byte* const> out,
                                   std::span<bool> gone, std::span<std::uint64_t> earliest, unsigned threads) const {
  const std::uint64_t worth = row_bytes_ * indices.size() / kWorthAThread;
  const std::size_t parts = std::min<std::size_t>({worth, threads, indices.size()});
  if (parts <= 1) return read_part(indices, 0, out, gone, earliest);
  std::atomic<Outcome> outcome{Outcome::kDone};
  platform::run_side_by_side(parts, [&](std::size_t part) noexcept {
    const std::size_t begin = indices.size() * part / parts, count = indices.size() * (part + 1) / parts - begin;
    const Outcome found = read_part(indices.subspan(begin, count), begin, out, gone.subspan(begin, count),
                                    earliest.empty() ? earliest : earliest.subspan(begin, count));
    if (found != Outcome::kDone) outcome = found;
  });
  return outcome;
}

Result<std::size_t> Gather::read(std::span<const std::uint64_t> indices, std::span<std::byte* const> out,
                                 std::span<bool> gone, unsigned threads) const try {
  if (out.size() != options_.outputs.size() || gone.size() != indices.size()) {
    return invalid(std::to_string(out.size()) + " outputs, where a batch has " +
                   std::to_string(options_.outputs.size()));
  }
  // Else the earliest ticket that a row needs is its own.
  std::vector<std::uint64_t> earliest(frames_here_ != 0 || frames_after_ != 0 ? indices.size() : 0);
  const Outcome outcome = read_parts(indices, out, gone, earliest, threads);
  if (outcome == Outcome::kNoMemory) return out_of_memory();
  if (outcome == Outcome::kNoAddresses) {
    return store_->arena()->unmapped("rows of a replay buffer");
  }
  platform::fence_acquire();  // the bytes were read before this asks whose they were
  const std::uint64_t head = store_->head();
  std::size_t count = 0;
  for (std::size_t at = 0; at < indices.size(); ++at) {
    const std::uint64_t ticket = earliest.empty() ? store_->shape().ticket_of(indices[at]) : earliest[at];
    gone[at] = gone[at] || ticket < head;
    count += gone[at];
  }
  return count;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree::replay
