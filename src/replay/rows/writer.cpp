#include "replay/rows/writer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "memory/event.h"
#include "platform/dcheck.h"
#include "replay/rows/leaf_copy.h"

namespace shmtree::replay {

using namespace platform;

namespace {

void set_bit(std::atomic<std::uint64_t>& word, std::uint32_t slot) noexcept {
  SHMTREE_DCHECK(slot < kMaxRowsPerChunk);
  store_relaxed(word, load_relaxed(word) | std::uint64_t{1} << slot);
}

#if !defined(__SANITIZE_THREAD__)
template <std::size_t kBytes>
void copy_fixed(std::byte* out, std::uint64_t out_stride, const std::byte* in, std::uint64_t in_stride,
                std::uint32_t count) noexcept {
  for (std::uint32_t i = 0; i < count; ++i) std::memcpy(out + i * out_stride, in + i * in_stride, kBytes);
}
#endif

void copy_column(std::byte* out, const Leaf& leaf, const Column& column, std::uint64_t from,
                 std::uint32_t count) noexcept {
  const std::byte* in = column.first + from * column.stride;
  if (leaf.stride == leaf.bytes && column.stride == leaf.bytes) return copy_racing(out, in, count * leaf.bytes);
#if !defined(__SANITIZE_THREAD__)
  const auto copy = [&](auto bytes) { copy_fixed<bytes>(out, leaf.stride, in, column.stride, count); };
  if (with_common_size(leaf.bytes, copy)) return;
#endif
  for (std::uint32_t i = 0; i < count; ++i) copy_leaf(out + i * leaf.stride, in + i * column.stride, leaf.bytes);
}

// Returns which of the rows end an episode, as bits. In a buffer with last observations, a truncated row does not end
// its episode yet: the last observation does.
std::uint64_t ends_of(const RowInfo* infos, std::uint64_t count, bool finals) noexcept {
  std::uint64_t bits = 0;
  for (std::uint64_t i = 0; infos != nullptr && i < count; ++i) {
    bits |= std::uint64_t{infos[i].done && !(infos[i].truncated && finals)} << i;
  }
  return bits;
}

bool cuts_before_last(const Writer::Rows& rows) noexcept {
  if (rows.infos == nullptr || rows.count == 0) return false;
  const auto is_cut = [](const RowInfo& info) { return info.done && info.truncated; };
  return std::ranges::any_of(std::span(rows.infos + rows.from, rows.count - 1), is_cut);
}

}  // namespace

Error Writer::other_leaves(std::size_t leaves) const {
  return Error{.code = Code::kInvalid,
               .message = "the row has " + std::to_string(leaves) + " leaves; rows of this buffer have " +
                          std::to_string(store_->shape().leaves.size())};
}

// Returns kInvalid after a truncated row that lacks its last observation, since the next row belongs to another
// episode.
Status Writer::check_complete() const {
  if (!lacks_final_ || !is_mine()) return success();
  return Error{.code = Code::kInvalid,
               .message =
                   "the last row of this stream is truncated, and batches need the observation after it: pass it "
                   "with the row as final=, or to end(), before the next row"};
}

// Records what the last row said about the end of its episode.
void Writer::note_end(const RowInfo& last) noexcept {
  lacks_final_ = last.done && last.truncated && store_->shape().finals;
  is_terminal_ = last.done && last.terminated;
  has_ended_.store(last.done, std::memory_order_relaxed);
}

// Forgets the rows that are not ready: they are gone, or belong to the parent process.
void Writer::forget() noexcept {
  left_.clear();
  priorities_.clear();
  ready_ = written_;
  done_ = false;
}

// Makes the current chunk busy for the next slot. Returns false if the writer needs another chunk.
bool Writer::continues() noexcept {
  if (part_.at.ticket != 0 && owner_ != store_->arena()->current_identity()) {  // the chunk of the parent process
    part_ = {};
    in_episode_ = false;
    forget();
  }
  if (part_.at.ticket == 0 || part_.at.closed) return false;
  if (!store_->is_young(part_.at.ticket) && store_->close_chunk(part_.at)) {
    part_.at.closed = true;
    return false;
  }
  if (store_->take_chunk(part_.at)) return true;
  part_.at.closed = true;
  part_.at.ready = part_.at.rows;
  forget();
  return false;
}

// Takes an offered chunk for a stream that begins. Returns false if there is none. The chunk's earlier slots count as
// if this writer had written them.
bool Writer::goes_on_elsewhere() noexcept {
  if (stream_ || written_ != 0) return false;
  const Identity me = store_->arena()->current_identity();
  const auto left = me == memory::kNoIdentity ? std::nullopt : store_->take_offered(me);
  if (!left) return false;
  part_ = {.at = *left, .first = 0};
  written_ = ready_ = left->rows;
  stream_ = stream_from(store_->shape().index_of(left->ticket, left->rows));
  entry_ = store_->entry(left->ticket, 0);
  owner_ = me;
  return true;
}

// Provides a busy chunk with space for at least one slot. If it opens a new one, `linked` links it to the last chunk.
// Reserves memory for the priorities of `slots` slots.
Status Writer::begin_slots(bool linked, std::uint64_t slots, const WaitContext& wait) {
  if (observer_ != nullptr) priorities_.reserve(priorities_.size() + slots);
  if (continues()) [[likely]]
    return success();
  if (goes_on_elsewhere()) return success();
  left_.reserve(left_.size() + 1);
  const bool waits = part_.at.ready < part_.at.rows;
  auto opened = store_->open_chunk(stream_, added_, linked ? part_.at.ticket : 0, wait);
  if (!opened) return std::move(opened).error();
  stream_ = load_relaxed(store_->info(*opened).stream);
  if (waits) left_.push_back(part_);
  if (observer_ != nullptr) observer_->after_open(*opened);
  part_ = {.at = {.ticket = *opened}, .first = written_};
  entry_ = store_->entry(*opened, 0);
  owner_ = store_->arena()->current_identity();
  return success();
}

// Marks the slot as the last one of its episode. A kill between the two stores leaves the episode open.
void Writer::mark(std::uint32_t slot, bool truncated) noexcept {
  SHMTREE_DCHECK(part_.at.ticket != 0 && slot < store_->shape().rows_per_chunk);
  ChunkInfo& info = store_->info(part_.at.ticket);
  if (truncated) set_bit(info.truncated, slot);
  set_bit(info.ends, slot);
}

// Passes the rows of a chunk that are about to become ready to the observer. Returns their number.
std::uint64_t Writer::notify_observer(const Part& part, std::uint32_t ready) noexcept {
  if (observer_ == nullptr) return 0;
  const std::uint64_t finals = load_relaxed(store_->info(part.at.ticket).finals);
  const std::uint64_t first = part.at.ticket * store_->shape().rows_per_chunk;
  std::uint64_t rows = 0;
  for (std::uint32_t slot = part.at.ready, end = 0; slot < ready; slot = end + 1) {
    for (end = slot; end < ready && (finals >> end & 1) == 0;) ++end;
    if (end == slot) continue;
    SHMTREE_DCHECK(part.first + slot >= ready_ && part.first + end <= ready_ + priorities_.size());
    observer_->before_ready(first + slot, std::span(priorities_).subspan(part.first + slot - ready_, end - slot));
    rows += end - slot;
  }
  return rows;
}

// Publishes the slots written to the busy chunk, and marks the stream's slots before `until` as ready. Publishes this
// chunk first, since rows of earlier chunks need its slots. Returns the number of rows passed to the observer.
std::uint64_t Writer::publish(std::uint64_t until) noexcept {
  SHMTREE_DCHECK(ready_ <= until && until <= written_ && written_ == part_.first + part_.at.rows);
  Progress& at = part_.at;
  const auto ready = static_cast<std::uint32_t>(std::clamp(until, part_.first, part_.first + at.rows) - part_.first);
  std::uint64_t rows = notify_observer(part_, std::max(at.ready, ready));
  at.ready = std::max(at.ready, ready);
  at.closed = at.closed || at.rows == store_->shape().rows_per_chunk;
  store_->leave_chunk(at);
  if (!left_.empty()) rows += make_left_ready(until);
  if (observer_ != nullptr && until > ready_) {
    priorities_.erase(priorities_.begin(), priorities_.begin() + static_cast<std::ptrdiff_t>(until - ready_));
    observer_->after_ready(rows);
  }
  ready_ = until;
  SHMTREE_DCHECK(observer_ == nullptr || priorities_.size() == written_ - ready_);
  memory::notify(store_->ready());
  return rows;
}

// Marks slots before `until` in earlier chunks as ready. Returns the number of rows passed to the observer.
std::uint64_t Writer::make_left_ready(std::uint64_t until) noexcept {
  std::uint64_t rows = 0;
  for (Part& part : left_) {
    const std::uint64_t end = part.first + part.at.rows;
    if (until <= part.first + part.at.ready) break;
    const auto now = static_cast<std::uint32_t>(std::min(until, end) - part.first);
    rows += notify_observer(part, now);
    store_->make_ready(part.at, now);
  }
  SHMTREE_DCHECK(std::ranges::is_sorted(left_, {}, &Part::first));
  std::erase_if(left_, [](const Part& part) { return part.at.ready == part.at.rows; });
  return rows;
}

// Returns how many slots of the stream will be ready, or never become so, once `count` more rows are written. `ended`
// has the bits of the rows that end an episode.
std::uint64_t Writer::ready_with(std::uint64_t count, std::uint64_t ended) const noexcept {
  SHMTREE_DCHECK(count != 0 && count <= kMaxRowsPerChunk);
  const Shape& shape = store_->shape();
  const std::uint64_t first = written_, last = std::uint64_t{1} << (count - 1);
  std::uint64_t until = done_ ? std::max(ready_, first) : ready_;
  if (written_ + count > shape.ahead) until = std::max(until, written_ + count - shape.ahead);
  const std::uint64_t here = ended & (last | (last - 1));
  const std::uint64_t over = shape.finals ? here & ~last : here;
  if (over != 0) until = std::max(until, first + static_cast<std::uint64_t>(std::bit_width(over)));
  return until;
}

// Asks the observer for credits before `rows` rows are written, and reduces `rows` to what these allow. Returns the
// number of credits.
Result<std::uint64_t> Writer::ask(std::uint64_t ended, std::uint64_t& rows, const WaitContext& wait) {
  if (observer_ == nullptr) return std::uint64_t{0};
  const std::uint64_t least = ready_with(1, ended) - ready_, most = ready_with(rows, ended) - ready_;
  if (most == 0) return most;
  auto credits = observer_->before_add(least, most, wait);
  if (!credits) return credits;
  while (rows > 1 && ready_with(rows, ended) - ready_ > *credits) --rows;
  return credits;
}

// Tells the observer how many credits exceed the `ready` rows, so that it releases them.
void Writer::answer(std::uint64_t credits, std::uint64_t ready) noexcept {
  if (credits > ready) observer_->after_add(credits - ready);
}

// Publishes `count` rows written to the chunk; `ended` has the bits of those that end an episode. Returns the number of
// rows that became ready.
std::uint64_t Writer::publish_rows(std::uint32_t count, std::uint64_t ended) noexcept {
  SHMTREE_DCHECK(count != 0 && part_.at.rows + count <= store_->shape().rows_per_chunk);
  const std::uint64_t last = std::uint64_t{1} << (count - 1), until = ready_with(count, ended);
  written_ += count;
  added_ += count;
  part_.at.rows += count;
  done_ = store_->shape().finals && (ended & last) != 0;
  in_episode_ = (ended & last) == 0;
  return publish(until);
}

// --- One row

void Writer::copy_row(std::span<const Column> columns, std::uint64_t row) noexcept {
  SHMTREE_DCHECK(columns.size() == store_->shape().leaves.size() && part_.at.rows < store_->shape().rows_per_chunk);
  const std::vector<Leaf>& to = store_->shape().leaves;
  const Entry entry = entry_ + part_.at.rows;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (columns[i].first != nullptr) {
      copy_leaf(entry.leaf(to[i]), columns[i].first + row * columns[i].stride, to[i].bytes);
    } else {
      std::memset(entry.leaf(to[i]), 0, to[i].bytes);
    }
  }
}

Result<std::uint64_t> Writer::add(std::span<const Column> leaves, const RowInfo& info, const WaitContext& wait,
                                  std::uint64_t row) try {
  const Shape& shape = store_->shape();
  if (leaves.size() != shape.leaves.size()) return other_leaves(leaves.size());
  if (Status complete = check_complete(); !complete) return std::move(complete).error();
  if (Status joined = membership_.begin(); !joined) return std::move(joined).error();
  const std::uint64_t ended = ends_of(&info, 1, shape.finals);
  std::uint64_t rows = 1;
  auto credits = ask(ended, rows, wait);
  if (!credits) return credits;
  Status begun = begin_slots(in_episode_, 1, wait);
  if (!begun) {
    answer(*credits, 0);
    return std::move(begun).error();
  }
  copy_row(leaves, row);
  const std::uint32_t slot = part_.at.rows;
  if (ended != 0) mark(slot, info.truncated);
  if (observer_ != nullptr) priorities_.push_back(info.priority);
  const std::uint64_t index = shape.index_of(part_.at.ticket, slot);
  answer(*credits, publish_rows(1, ended));
  note_end(info);
  return index;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// --- Many rows at once: chunk by chunk, and column by column within a chunk

void Writer::copy_rows(std::span<const Column> columns, std::uint64_t from, std::uint32_t count) noexcept {
  const Shape& shape = store_->shape();
  SHMTREE_DCHECK(columns.size() == shape.leaves.size() && part_.at.rows + count <= shape.rows_per_chunk);
  const Entry entry = entry_ + part_.at.rows;
  prefetch_for_write(entry.extent + entry.number * shape.record_bytes, count * shape.record_bytes);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    copy_column(entry.leaf(shape.leaves[i]), shape.leaves[i], columns[i], from, count);
  }
}

void Writer::mark_ends(const Rows& rows, std::uint64_t from, std::uint64_t ended) noexcept {
  for (; ended != 0; ended &= ended - 1) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(ended));
    mark(part_.at.rows + i, rows.infos[from + i].truncated);
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
    return Error{.code = Code::kInvalid,
                 .message = "a row before the last one is truncated and has no last observation: pass it as final="};
  }
  if (Status joined = membership_.begin(); !joined) return joined;
  const std::uint64_t end = rows.from + rows.count;
  for (std::uint64_t from = rows.from; from < end;) {
    const RowInfo* const infos = rows.infos == nullptr ? nullptr : rows.infos + from;
    std::uint64_t most = std::min(end - from, shape.rows_per_chunk);
    std::uint64_t ended = ends_of(infos, most, shape.finals);
    auto credits = ask(ended, most, wait);
    if (!credits) return std::move(credits).error();
    Status begun = begin_slots(in_episode_, most, wait);
    if (!begun) {
      answer(*credits, 0);
      return begun;
    }
    const std::uint32_t slot = part_.at.rows;
    const auto count = static_cast<std::uint32_t>(std::min(most, shape.rows_per_chunk - slot));
    ended &= bits_below(count);
    copy_rows(rows.columns, from, count);
    mark_ends(rows, from, ended);
    if (indices != nullptr) {
      std::iota(indices + from, indices + from + count, shape.index_of(part_.at.ticket, slot));
    }
    for (std::uint32_t i = 0; observer_ != nullptr && i < count; ++i) {
      priorities_.push_back(infos == nullptr ? kNoPriority : infos[i].priority);
    }
    answer(*credits, publish_rows(count, ended));
    note_end(infos == nullptr ? RowInfo{} : infos[count - 1]);
    from += count;
  }
  return success();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// --- Ends

// Ends the episode with the last row, without a last observation.
void Writer::end_here(bool truncated) noexcept {
  if (store_->take_chunk(part_.at)) {
    mark(part_.at.rows - 1, truncated);
    publish(written_);
  } else {
    part_.at.closed = true;
    part_.at.ready = part_.at.rows;
    forget();
  }
  in_episode_ = done_ = false;
  has_ended_.store(true, std::memory_order_relaxed);
}

Status Writer::end(std::span<const Column> final, bool truncated, const WaitContext& wait, std::uint64_t row) try {
  const Shape& shape = store_->shape();
  if (!final.empty() && (!shape.finals || final.size() != shape.leaves.size())) {
    return Error{.code = Code::kInvalid,
                 .message = "final has " + std::to_string(final.size()) + " leaves; it must have " +
                            std::to_string(shape.finals ? shape.leaves.size() : 0)};
  }
  const bool lacks_final = lacks_final_ && is_mine();
  const bool is_cut = lacks_final || (truncated && !(done_ && is_terminal_));
  if (final.empty() && is_cut && shape.finals) {
    return Error{.code = Code::kInvalid,
                 .message = "a truncated episode needs its last observation: pass it as final="};
  }
  if (!is_mine() || (!in_episode_ && !done_)) return success();
  if (final.empty()) {
    end_here(is_cut);
    return success();
  }
  // Marks the row, which may be in another chunk, before it writes the observation. Neither is ready before that.
  if (store_->take_chunk(part_.at)) {
    mark(part_.at.rows - 1, is_cut);
    store_->leave_chunk(part_.at);
  }
  done_ = true;
  lacks_final_ = is_cut;  // until the observation is written; without it the row is never ready
  Status begun = begin_slots(true, 1, wait);
  if (!begun) return begun;
  copy_row(final, row);
  set_bit(store_->info(part_.at.ticket).finals, part_.at.rows++);
  if (observer_ != nullptr) priorities_.push_back(0);
  publish(++written_);
  in_episode_ = done_ = lacks_final_ = false;
  has_ended_.store(true, std::memory_order_relaxed);
  return success();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

void Writer::close() noexcept {
  if (part_.at.ticket != 0 && owner_ == store_->arena()->current_identity()) {
    if (done_ && !lacks_final_) end_here(false);
    const bool is_left = !part_.at.closed && offers_rest_ && store_->offer_chunk(part_.at);
    if (!part_.at.closed && !is_left) store_->close_chunk(part_.at);
  }
  part_ = {};
  in_episode_ = lacks_final_ = false;
  has_ended_.store(false, std::memory_order_relaxed);
  forget();
  membership_.end();
}

}  // namespace shmtree::replay
