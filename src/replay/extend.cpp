// Many rows at once: a place at a time, and of each column all that goes into it.
#include <algorithm>
#include <bit>
#include <numeric>

#include "replay/leaf_copy.h"
#include "replay/writer.h"

namespace shmtree::replay {

using namespace platform;

namespace {

#if !defined(__SANITIZE_THREAD__)
template <std::size_t kBytes>
void copy_fixed(std::byte* out, std::uint64_t out_stride, const std::byte* in, std::uint64_t in_stride,
                std::uint32_t count) noexcept {
  for (std::uint32_t i = 0; i < count; ++i) std::memcpy(out + i * out_stride, in + i * in_stride, kBytes);
}
#endif

void copy_column(std::byte* out, const Leaf& leaf, const Writer::Column& column, std::uint64_t from,
                 std::uint32_t count) noexcept {
  const std::byte* in = column.first + from * column.stride;
  if (leaf.stride == leaf.bytes && column.stride == leaf.bytes) return copy_racing(out, in, count * leaf.bytes);
#if !defined(__SANITIZE_THREAD__)
  switch (leaf.bytes) {
    case 1: return copy_fixed<1>(out, leaf.stride, in, column.stride, count);
    case 2: return copy_fixed<2>(out, leaf.stride, in, column.stride, count);
    case 4: return copy_fixed<4>(out, leaf.stride, in, column.stride, count);
    case 8: return copy_fixed<8>(out, leaf.stride, in, column.stride, count);
    case 12: return copy_fixed<12>(out, leaf.stride, in, column.stride, count);
    case 16: return copy_fixed<16>(out, leaf.stride, in, column.stride, count);
    case 24: return copy_fixed<24>(out, leaf.stride, in, column.stride, count);
    case 32: return copy_fixed<32>(out, leaf.stride, in, column.stride, count);
    case 64: return copy_fixed<64>(out, leaf.stride, in, column.stride, count);
    default: break;
  }
#endif
  for (std::uint32_t i = 0; i < count; ++i) {
    copy_racing(out + i * leaf.stride, in + i * column.stride, leaf.bytes);
  }
}

// Returns the mask of the rows from `from` on as bits.
std::uint64_t bits_of(const bool* mask, std::uint64_t from, std::uint64_t count) noexcept {
  std::uint64_t bits = 0;
  for (std::uint64_t i = 0; mask != nullptr && i < count; ++i) bits |= std::uint64_t{mask[from + i]} << i;
  return bits;
}

RowInfo info_at(const Writer::Rows& rows, std::uint64_t row) noexcept {
  const auto is = [row](const bool* mask) { return mask != nullptr && mask[row]; };
  return {.done = is(rows.ends), .truncated = is(rows.truncated), .terminated = is(rows.terminated)};
}

bool cuts_before_last(const Writer::Rows& rows) noexcept {
  for (std::uint64_t row = 0; rows.truncated != nullptr && row + 1 < rows.count; ++row) {
    if (rows.truncated[row] && info_at(rows, row).done) return true;
  }
  return false;
}

}  // namespace

void Writer::copy_rows(std::span<const Column> columns, std::uint64_t from, std::uint32_t count) noexcept {
  const Shape& shape = store_->shape();
  const Entry entry = entry_ + part_.at.rows;
  prefetch_for_write(entry.extent + entry.number * shape.record_bytes, count * shape.record_bytes);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    copy_column(entry.leaf(shape.leaves[i]), shape.leaves[i], columns[i], from, count);
  }
}

void Writer::mark_ends(const Rows& rows, std::uint64_t from, std::uint64_t ended) noexcept {
  for (; ended != 0; ended &= ended - 1) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(ended));
    mark(part_.at.rows + i, rows.truncated != nullptr && rows.truncated[from + i]);
  }
}

Status Writer::extend(const Rows& rows, std::uint64_t* indices, const WaitContext& wait) {
  const std::uint64_t before = added_;
  Status done = add_all(rows, indices, wait);
  if (done) return done;
  Error error = std::move(done).error();
  error.completed = added_ - before;
  return error;
}

Status Writer::add_all(const Rows& rows, std::uint64_t* indices, const WaitContext& wait) try {
  const Shape& shape = store_->shape();
  if (rows.columns.size() != shape.leaves.size()) return other_leaves(rows.columns.size());
  if (Status complete = check_complete(); !complete) return complete;
  if (shape.finals && cuts_before_last(rows)) {
    return Error{.code = Code::kInvalid, .message = "a row before the last one is truncated, but has no final"};
  }
  if (Status joined = adding_.begin(); !joined) return joined;
  for (std::uint64_t from = 0; from < rows.count;) {
    std::uint64_t most = std::min(rows.count - from, shape.rows_per_place);
    std::uint64_t ended = bits_of(rows.ends, from, most);
    if (shape.finals) ended &= ~bits_of(rows.truncated, from, most);
    auto permits = ask(ended, most, wait);
    if (!permits) return std::move(permits).error();
    Status begun = begin_slots(in_episode_, most, wait);
    if (!begun) {
      answer(*permits, 0);
      return begun;
    }
    const std::uint32_t slot = part_.at.rows;
    const auto count = static_cast<std::uint32_t>(std::min(most, shape.rows_per_place - slot));
    ended &= bits_below(count);
    copy_rows(rows.columns, from, count);
    mark_ends(rows, from, ended);
    if (indices != nullptr) {
      std::iota(indices + from, indices + from + count, shape.index_of(part_.at.ticket, slot));
    }
    if (observer_ != nullptr && rows.priorities != nullptr) {
      priorities_.insert(priorities_.end(), rows.priorities + from, rows.priorities + from + count);
    } else if (observer_ != nullptr) {
      priorities_.insert(priorities_.end(), count, kNoPriority);
    }
    answer(*permits, publish_rows(count, ended));
    from += count;
    note_end(info_at(rows, from - 1));
  }
  return success();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree::replay
