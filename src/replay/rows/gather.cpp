#include "replay/rows/gather.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platform/errors.h"
#include "platform/side_threads.h"
#include "replay/rows/chain.h"
#include "replay/rows/leaf_copy.h"

namespace shmtree::replay {

using namespace platform;

namespace {

constexpr std::uint64_t kSmallRow = 1024;  // prefetched bytes; smaller rows are processed in blocks of kMaxRows
constexpr std::size_t kLargeRows = 4;      // rows per block of larger ones
constexpr std::size_t kPartsPerThread = 4;
// Minimum bytes per thread. Starting a thread takes as long as copying 100 KB.
constexpr std::uint64_t kWorthAThread = std::uint64_t{1} << 19;

bool is_of_leaf(OutputKind kind) noexcept {
  return kind != OutputKind::kDiscount && kind != OutputKind::kStream && kind != OutputKind::kStep;
}
bool is_stack(OutputKind kind) noexcept {
  return kind == OutputKind::kStack || kind == OutputKind::kSuccessorStack;
}

Status check(const Shape& shape, const GatherOptions& options, const Output& output) {
  if (is_of_leaf(output.kind) && output.leaf >= shape.leaves.size()) {
    return invalid("leaf number " + std::to_string(output.leaf) + " of rows with " +
                   std::to_string(shape.leaves.size()) + " leaves");
  }
  if (is_stack(output.kind) && (output.frames == 0 || output.frames > Gather::kMaxFrames)) {
    return invalid("a stack has " + std::to_string(output.frames) + " frames; it must have 1 to " +
                   std::to_string(Gather::kMaxFrames));
  }
  const bool after = output.kind == OutputKind::kSuccessor || output.kind == OutputKind::kSuccessorStack;
  const bool sums = output.kind == OutputKind::kRewardSum || output.kind == OutputKind::kDiscount;
  if ((after && options.n_step > shape.ahead) || (sums && options.n_step > shape.ahead + 1)) {
    return invalid("the batch needs the row " + std::to_string(options.n_step) +
                   " steps later, but rows are ready after " + std::to_string(shape.ahead) + " successors");
  }
  const std::uint64_t number = output.is_double ? 8 : 4;
  if (output.kind == OutputKind::kRewardSum && shape.leaves[output.leaf].bytes % number != 0) {
    return invalid("a leaf of " + std::to_string(shape.leaves[output.leaf].bytes) + " bytes cannot be summed");
  }
  return success();
}

constexpr std::uint64_t kFetched = 256;  // bytes to prefetch of a leaf; the hardware fetches the rest
constexpr std::uint32_t kMaxAsked = 8;   // rows to prefetch for a sum

// True for a leaf that SideBySide copies, and prefetches itself.
bool is_large(const Leaf& leaf) noexcept {
  return leaf.bytes >= SideBySide::kMinBytes;
}

void fetch_leaf(const Leaf& leaf, const Entry& entry) noexcept {
  if (!is_large(leaf)) prefetch(entry.leaf(leaf), std::min(leaf.bytes, kFetched));
}

void copy_or_add(std::byte* out, const std::byte* in, const Leaf& leaf, SideBySide& large) noexcept {
  if (is_large(leaf)) {
    large.add(out, in, leaf.bytes);
  } else {
    copy_leaf(out, in, leaf.bytes);
  }
}

#if !defined(__SANITIZE_THREAD__)
// Copies one leaf of each record, with a size known at compile time.
template <std::size_t kBytes>
void copy_fixed(std::span<const std::byte* const> records, const Leaf& leaf, std::byte* out) noexcept {
  static_assert(kBytes <= kMaxInRecord);
  const std::uint64_t begin = leaf.begin;
  for (const std::byte* const record : records) {
    std::memcpy(out, record + begin, kBytes);
    out += kBytes;
  }
}
#endif

}  // namespace

// --- A block of rows of a batch: located, prefetched, then copied. One thread at a time.

class GatherBlock {
 public:
  static constexpr std::size_t kMaxRows = 32;

  explicit GatherBlock(const Gather& gather);

  // Prefetches the words that look_up() reads.
  static void fetch_words(const Store& store, std::span<const std::uint64_t> indices, bool with_info) noexcept;
  // Locates the rows and their successors and frames. Marks rows that are gone. Writes the earliest ticket that each
  // other row needs to `earliest`, unless that is empty.
  void look_up(std::span<const std::uint64_t> indices, std::span<bool> gone,
               std::span<std::uint64_t> earliest) noexcept;
  // Prefetches the bytes of the rows.
  void fetch() const noexcept;
  // Copies the rows to the rows of `out` from `first` on, and adds large leaves to `large`. Writes zeros for rows that
  // are gone.
  void copy(std::size_t first, std::span<std::byte* const> out, SideBySide& large) const noexcept;
  std::size_t rows() const noexcept { return rows_; }
  // True if this process could not map an extent.
  bool failed() const noexcept { return failed_; }

 private:
  // Addresses of slots and of their records.
  struct Slots {
    std::array<Entry, kMaxRows> entries;
    std::array<const std::byte*, kMaxRows> records;

    void set(std::size_t row, const Entry& entry, const Shape& shape) noexcept {
      entries[row] = entry;
      records[row] = entry.extent == nullptr ? nullptr : entry.extent + entry.number * shape.record_bytes;
    }
  };

  bool look_up(std::size_t row, Position at, std::uint64_t& earliest) noexcept;
  bool look_ahead(std::size_t row, Position at, std::uint64_t& earliest) noexcept;
  bool look_back(Position from, std::uint32_t frames, std::span<Entry> entries, std::uint32_t& count,
                 std::uint64_t& earliest) noexcept;
  Entry entry(Position at) noexcept;
  bool is_there(std::size_t row) const noexcept { return here_.entries[row].extent != nullptr; }
  void fetch_slot(std::span<const std::size_t> columns, const Slots& slots, std::size_t row) const noexcept;
  void copy_leaves(const Slots& slots, const Leaf& leaf, std::byte* out, SideBySide& large) const noexcept;
  void copy_stacks(bool here, const Output& output, std::byte* out, SideBySide& large) const noexcept;
  template <class Number>
  void sum(const Leaf& leaf, std::byte* out) const noexcept;
  template <class Number>
  void discounts(std::byte* out) const noexcept;
  void numbers(const std::array<std::int64_t, kMaxRows>& from, std::byte* out) const noexcept;

  const Gather& gather_;
  const Store& store_;
  const Chain chain_;
  std::size_t rows_ = 0;
  bool failed_ = false, all_there_ = false;
  Slots here_, after_;
  std::array<std::uint32_t, kMaxRows> summed_{}, frames_here_{}, frames_after_{};
  std::array<bool, kMaxRows> terminated_{};
  std::array<std::int64_t, kMaxRows> streams_{}, steps_{};
  std::vector<Entry> sums_, stacks_here_, stacks_after_;  // n_step entries, or the most frames, for each row
};

GatherBlock::GatherBlock(const Gather& gather)
    : gather_(gather),
      store_(*gather.store_),
      chain_(store_),
      sums_(gather.sums_ ? gather.block_ * gather.options_.n_step : 0),
      stacks_here_(gather.block_ * gather.frames_here_),
      stacks_after_(gather.block_ * gather.frames_after_) {}

void GatherBlock::fetch_words(const Store& store, std::span<const std::uint64_t> indices, bool with_info) noexcept {
  for (const std::uint64_t index : indices) {
    const std::uint64_t ticket = store.shape().ticket_of(index);
    if (ticket <= kMaxTicket) store.fetch_words(ticket, with_info);
  }
}

Entry GatherBlock::entry(Position at) noexcept {
  const Entry found = store_.entry(at.ticket, at.slot);
  failed_ = failed_ || found.extent == nullptr;
  return found;
}

// Finds up to `frames` frames, from this one backwards.
bool GatherBlock::look_back(Position from, std::uint32_t frames, std::span<Entry> entries, std::uint32_t& count,
                            std::uint64_t& earliest) noexcept {
  Before before = Before::kThere;
  for (count = 0; count < frames && before == Before::kThere; ++count) {
    entries[count] = entry(from);
    earliest = std::min(earliest, from.ticket);
    if (count + 1 < frames) before = chain_.step_back(from);
  }
  return before != Before::kGone;
}

// Finds the successors of the row, as far as an output needs them.
bool GatherBlock::look_ahead(std::size_t row, Position at, std::uint64_t& earliest) noexcept {
  const GatherOptions& options = gather_.options_;
  Entry* sum = gather_.sums_ ? &sums_[row * options.n_step] : nullptr;
  const Reach reach =
      chain_.reach(at, options.n_step, gather_.wants_successor_, [&](Position from, std::uint32_t count) {
        for (std::uint32_t i = 0; sum != nullptr && i < count; ++i) *sum++ = entry({from.ticket, from.slot + i});
      });
  if (!reach.there) return false;
  summed_[row] = reach.rows;
  terminated_[row] = reach.terminated;
  if (gather_.wants_successor_) after_.set(row, entry(reach.successor), store_.shape());
  const std::uint32_t frames = gather_.frames_after_;
  return frames == 0 || look_back(reach.successor, frames, std::span(stacks_after_).subspan(row * frames, frames),
                                  frames_after_[row], earliest);
}

bool GatherBlock::look_up(std::size_t row, Position at, std::uint64_t& earliest) noexcept {
  if (at.ticket > kMaxTicket) return false;
  const Shape& shape = store_.shape();
  const std::uint64_t chunk = shape.chunk_of(at.ticket);
  if (!store_.has_row_in(chunk, at.ticket, at.slot)) return false;
  const Entry here = store_.entry_of_chunk(chunk, at.slot);
  failed_ = failed_ || here.extent == nullptr;
  here_.set(row, here, shape);
  earliest = at.ticket;
  if (gather_.reaches_ && !look_ahead(row, at, earliest)) return false;
  const std::uint32_t frames = gather_.frames_here_;
  if (frames != 0 &&
      !look_back(at, frames, std::span(stacks_here_).subspan(row * frames, frames), frames_here_[row], earliest)) {
    return false;
  }
  if (gather_.provenance_) {
    const ChunkInfo& info = store_.info_of_chunk(chunk);
    const StreamStep step = step_of({.ticket = at.ticket,
                                     .rows_per_chunk = shape.rows_per_chunk,
                                     .first = {load_relaxed(info.stream), load_relaxed(info.first_row)},
                                     .begins = load_relaxed(info.begins),
                                     .finals = load_relaxed(info.finals)},
                                    at.slot);
    streams_[row] = step.stream;
    steps_[row] = static_cast<std::int64_t>(step.rows);
  }
  return true;
}

void GatherBlock::look_up(std::span<const std::uint64_t> indices, std::span<bool> gone,
                          std::span<std::uint64_t> earliest) noexcept {
  const Shape& shape = store_.shape();
  rows_ = indices.size();
  all_there_ = true;
  for (std::size_t row = 0; row < rows_; ++row) {
    const Position at{shape.ticket_of(indices[row]), static_cast<std::uint32_t>(shape.slot_of(indices[row]))};
    std::uint64_t least = 0;
    gone[row] = !look_up(row, at, least);
    if (gone[row]) here_.set(row, {}, shape);
    if (!earliest.empty()) earliest[row] = least;
    all_there_ = all_there_ && !gone[row];
  }
}

void GatherBlock::fetch_slot(std::span<const std::size_t> columns, const Slots& slots, std::size_t row) const noexcept {
  const Shape& shape = store_.shape();
  prefetch(slots.records[row], shape.record_bytes);
  for (const std::size_t column : columns) fetch_leaf(shape.leaves[column], slots.entries[row]);
}

void GatherBlock::fetch() const noexcept {
  const std::vector<Leaf>& leaves = store_.shape().leaves;
  const GatherOptions& options = gather_.options_;
  for (std::size_t row = 0; row < rows_; ++row) {
    if (!is_there(row)) continue;
    fetch_slot(gather_.columns_here_, here_, row);
    if (gather_.wants_successor_) fetch_slot(gather_.columns_after_, after_, row);
    if (gather_.sums_) {
      const std::uint32_t asked = std::min(summed_[row], kMaxAsked);
      for (std::uint32_t i = 1; i < asked; ++i) fetch_leaf(leaves[gather_.sum_leaf_], sums_[row * options.n_step + i]);
    }
    for (std::uint32_t i = 1; gather_.frames_here_ != 0 && i < frames_here_[row]; ++i) {
      fetch_leaf(leaves[gather_.stack_leaf_], stacks_here_[row * gather_.frames_here_ + i]);
    }
  }
}

void GatherBlock::copy_leaves(const Slots& slots, const Leaf& leaf, std::byte* out, SideBySide& large) const noexcept {
#if !defined(__SANITIZE_THREAD__)
  const std::span records(slots.records.data(), rows_);
  if (all_there_ && with_common_size(leaf.bytes, [&](auto bytes) { copy_fixed<bytes>(records, leaf, out); })) return;
#endif
  for (std::size_t row = 0; row < rows_; ++row, out += leaf.bytes) {
    if (is_there(row)) {
      copy_or_add(out, slots.entries[row].leaf(leaf), leaf, large);
    } else {
      std::memset(out, 0, leaf.bytes);
    }
  }
}

void GatherBlock::copy_stacks(bool here, const Output& output, std::byte* out, SideBySide& large) const noexcept {
  const Leaf& leaf = store_.shape().leaves[output.leaf];
  const std::uint32_t most = here ? gather_.frames_here_ : gather_.frames_after_;
  for (std::size_t row = 0; row < rows_; ++row, out += output.frames * leaf.bytes) {
    if (!is_there(row)) {
      std::memset(out, 0, output.frames * leaf.bytes);
      continue;
    }
    const Entry* newest = &(here ? stacks_here_ : stacks_after_)[row * most];
    const std::uint32_t there = std::min((here ? frames_here_ : frames_after_)[row], output.frames);
    for (std::uint32_t frame = 0; frame < output.frames; ++frame) {  // stores the newest one last
      std::byte* to = out + (output.frames - 1 - frame) * leaf.bytes;
      if (frame < there || output.repeats_first) {
        copy_or_add(to, newest[std::min(frame, there - 1)].leaf(leaf), leaf, large);
      } else {
        std::memset(to, 0, leaf.bytes);
      }
    }
  }
}

template <class Number>
void GatherBlock::sum(const Leaf& leaf, std::byte* out) const noexcept {
  const std::size_t elements = leaf.bytes / sizeof(Number);
  for (std::size_t row = 0; row < rows_; ++row) {
    const Entry* from = &sums_[row * gather_.options_.n_step];
    const std::uint32_t terms = is_there(row) ? summed_[row] : 0;
    for (std::size_t element = 0; element < elements; ++element, out += sizeof(Number)) {
      double sum = 0;
      for (std::uint32_t i = 0; i < terms; ++i) {
        Number term;
        copy_leaf(reinterpret_cast<std::byte*>(&term), from[i].leaf(leaf) + element * sizeof(Number), sizeof term);
        sum += gather_.powers_[i] * static_cast<double>(term);
      }
      const auto result = static_cast<Number>(sum);
      std::memcpy(out, &result, sizeof result);
    }
  }
}

template <class Number>
void GatherBlock::discounts(std::byte* out) const noexcept {
  for (std::size_t row = 0; row < rows_; ++row, out += sizeof(Number)) {
    const bool left = is_there(row) && !terminated_[row];
    const auto result = static_cast<Number>(left ? gather_.powers_[summed_[row]] : 0);
    std::memcpy(out, &result, sizeof result);
  }
}

void GatherBlock::numbers(const std::array<std::int64_t, kMaxRows>& from, std::byte* out) const noexcept {
  std::memcpy(out, from.data(), rows_ * sizeof(std::int64_t));
  for (std::size_t row = 0; !all_there_ && row < rows_; ++row) {
    if (!is_there(row)) std::memset(out + row * sizeof(std::int64_t), 0, sizeof(std::int64_t));
  }
}

void GatherBlock::copy(std::size_t first, std::span<std::byte* const> out, SideBySide& large) const noexcept {
  const std::vector<Output>& outputs = gather_.options_.outputs;
  const std::vector<Leaf>& leaves = store_.shape().leaves;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Output& output = outputs[i];
    std::byte* const to = out[i] + first * gather_.bytes_[i];
    switch (output.kind) {
      case OutputKind::kHere: copy_leaves(here_, leaves[output.leaf], to, large); break;
      case OutputKind::kSuccessor: copy_leaves(after_, leaves[output.leaf], to, large); break;
      case OutputKind::kStack: copy_stacks(true, output, to, large); break;
      case OutputKind::kSuccessorStack: copy_stacks(false, output, to, large); break;
      case OutputKind::kRewardSum:
        output.is_double ? sum<double>(leaves[output.leaf], to) : sum<float>(leaves[output.leaf], to);
        break;
      case OutputKind::kDiscount: output.is_double ? discounts<double>(to) : discounts<float>(to); break;
      case OutputKind::kStream: numbers(streams_, to); break;
      case OutputKind::kStep: numbers(steps_, to); break;
    }
  }
}

// --- A batch

Gather::Gather(std::shared_ptr<const Store> store, GatherOptions options)
    : store_(std::move(store)), options_(std::move(options)) {
  std::uint64_t fetched = 0;
  for (const Output& output : options_.outputs) {
    const std::uint64_t leaf = is_of_leaf(output.kind) ? store_->shape().leaves[output.leaf].bytes : 0;
    const bool after = output.kind == OutputKind::kSuccessor || output.kind == OutputKind::kSuccessorStack;
    const bool sums = output.kind == OutputKind::kRewardSum, discount = output.kind == OutputKind::kDiscount;
    bytes_.push_back(is_stack(output.kind)           ? output.frames * leaf
                     : leaf != 0                     ? leaf
                     : discount && !output.is_double ? 4
                                                     : 8);
    row_bytes_ += bytes_.back();
    if (leaf < SideBySide::kMinBytes) fetched += bytes_.back();
    wants_successor_ = wants_successor_ || after;
    reaches_ = reaches_ || after || sums || discount;
    provenance_ = provenance_ || output.kind == OutputKind::kStream || output.kind == OutputKind::kStep;
    if (sums) sums_ = true, sum_leaf_ = output.leaf;
    if (is_stack(output.kind)) stack_leaf_ = output.leaf;
    const bool has_column = is_of_leaf(output.kind) && store_->shape().leaves[output.leaf].has_column;
    if (has_column && output.kind == OutputKind::kHere) columns_here_.push_back(output.leaf);
    if (has_column && output.kind == OutputKind::kSuccessor) columns_after_.push_back(output.leaf);
    std::uint32_t& most = after ? frames_after_ : frames_here_;
    if (is_stack(output.kind)) most = std::max(most, output.frames);
  }
  for (std::uint32_t i = 0; i <= options_.n_step; ++i) powers_.push_back(std::pow(options_.gamma, i));
  block_ = fetched <= kSmallRow ? GatherBlock::kMaxRows : kLargeRows;
}

Result<Gather> Gather::create(std::shared_ptr<const Store> store, GatherOptions options) try {
  if (options.n_step == 0 || options.n_step > kMaxAhead) {
    return invalid("n_step is " + std::to_string(options.n_step) + "; it must be 1 to " + std::to_string(kMaxAhead));
  }
  if (options.outputs.empty()) return invalid("a batch needs at least one output");
  for (const Output& output : options.outputs) {
    Status fits = check(store->shape(), options, output);
    if (!fits) return std::move(fits).error();
  }
  return Gather(std::move(store), std::move(options));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// Reads the rows of the batch from `begin` to `end`.
Gather::Outcome Gather::read_part(const Call& call, std::size_t begin, std::size_t end) const noexcept try {
  GatherBlock blocks[2]{GatherBlock(*this), GatherBlock(*this)};
  SideBySide large(row_bytes_ * call.indices.size() < kStreamedBytes ? Stores::kCached : Stores::kStreamed);
  const bool with_info = reaches_ || provenance_ || frames_here_ != 0 || store_->shape().finals;
  const auto piece = [&](std::size_t at) { return std::min(block_, end - std::min(at, end)); };
  GatherBlock::fetch_words(*store_, call.indices.subspan(begin, piece(begin)), with_info);
  for (std::size_t at = begin, turn = 0; at < end + block_; at += block_, ++turn) {
    if (const std::size_t count = piece(at); count != 0) {
      const std::size_t after = at + count;
      GatherBlock::fetch_words(*store_, call.indices.subspan(after, piece(after)), with_info);
      GatherBlock& block = blocks[turn % 2];
      block.look_up(call.indices.subspan(at, count), call.gone.subspan(at, count),
                    call.earliest.empty() ? call.earliest : call.earliest.subspan(at, count));
      if (block.failed()) return Outcome::kNoAddresses;
      block.fetch();
    }
    if (turn > 0) blocks[(turn - 1) % 2].copy(at - block_, call.out, large);
  }
  return Outcome::kDone;
} catch (const std::bad_alloc&) {
  return Outcome::kNoMemory;
}

// Each thread takes the next part when it has read one, so that a thread that gets no core delays the others little.
Gather::Outcome Gather::read_parts(const Call& call, unsigned threads) const {
  const std::size_t rows = call.indices.size();
  const std::uint64_t worth = row_bytes_ * rows / kWorthAThread;
  threads = static_cast<unsigned>(std::min<std::uint64_t>({worth, threads, rows}));
  if (threads <= 1) return read_part(call, 0, rows);
  const std::size_t parts = std::min(threads * kPartsPerThread, rows);
  std::atomic<Outcome> outcome{Outcome::kDone};
  std::atomic<std::size_t> taken{0};
  platform::run_side_by_side(threads, [&](std::size_t) noexcept {
    for (std::size_t part = 0; (part = taken.fetch_add(1)) < parts;) {
      const Outcome found = read_part(call, rows * part / parts, rows * (part + 1) / parts);
      if (found != Outcome::kDone) outcome = found;
    }
  });
  return outcome;
}

Result<std::size_t> Gather::read(std::span<const std::uint64_t> indices, std::span<std::byte* const> out,
                                 std::span<bool> gone, unsigned threads) const try {
  if (out.size() != options_.outputs.size() || gone.size() != indices.size()) {
    return invalid(std::to_string(out.size()) + " output buffers; the batch has " +
                   std::to_string(options_.outputs.size()) + " outputs");
  }
  // Without stacks, the earliest ticket that a row needs is its own.
  std::vector<std::uint64_t> earliest(frames_here_ != 0 || frames_after_ != 0 ? indices.size() : 0);
  const Outcome outcome = read_parts({indices, out, gone, earliest}, threads);
  if (outcome == Outcome::kNoMemory) return out_of_memory();
  if (outcome == Outcome::kNoAddresses) {
    return store_->arena()->unmapped("rows of a replay buffer");
  }
  platform::fence_acquire();  // reads the bytes before `head`
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
