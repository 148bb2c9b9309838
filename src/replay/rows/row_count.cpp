#include "replay/rows/row_count.h"

#include <algorithm>
#include <bit>

#include "platform/dcheck.h"
#include "replay/rows/chain.h"

namespace shmtree::replay {

// Returns a mask of the chunk's slots. A set bit means that frames which the row of that slot needs have left the
// window.
std::uint64_t RowCount::without_frames(const Store& store, std::uint64_t ticket, std::uint64_t& needs) const noexcept {
  const Chain chain(store);
  const std::uint64_t head = store.head();
  const std::uint32_t wanted = frames_ - 1;
  std::uint32_t there = 0;  // frames before the chunk's first slot
  Position at{ticket, 0};
  Before before = Before::kThere;
  for (; there < wanted; ++there) {
    before = chain.step_back(at);
    if (before == Before::kThere && at.ticket < head) before = Before::kGone;
    if (before != Before::kThere) break;
    needs = at.ticket;
  }
  if (before != Before::kGone) return 0;
  // Frames reach back only to the beginning of the episode. An end of an episode in this chunk stops them.
  const ChunkInfo& info = store.info(ticket);
  const std::uint64_t ends = platform::load_relaxed(info.ends) | platform::load_relaxed(info.finals);
  const auto first_episode = static_cast<std::uint32_t>(std::countr_zero(ends)) + 1;
  return bits_below(std::min({wanted - there, first_episode, std::uint32_t{kMaxRowsPerChunk}}));
}

RowCount::Counted RowCount::count_chunk(const Store& store, std::uint64_t ticket, const Progress& now) const noexcept {
  Counted counted;
  if (now.ticket != ticket) return counted;
  std::uint64_t rows = bits_below(std::min<std::uint64_t>(now.ready, store.shape().rows_per_chunk));
  if (store.shape().finals) rows &= ~platform::load_relaxed(store.info(ticket).finals);
  if (frames_ > 1 && rows != 0) rows &= ~without_frames(store, ticket, counted.needs);
  counted.rows = static_cast<std::uint8_t>(std::popcount(rows));
  return counted;
}

std::uint64_t RowCount::count_all(const Store& store) const noexcept {
  std::uint64_t rows = 0;
  const Window now = store.window();
  for (std::uint64_t ticket = now.head; ticket < now.tail; ++ticket) {
    rows += count_chunk(store, ticket, store.progress(ticket)).rows;
  }
  return rows;
}

void RowCount::forget(const Store& store, std::uint64_t ticket) noexcept {
  std::uint8_t& rows = rows_[store.shape().chunk_of(ticket)];
  SHMTREE_DCHECK(sum_ >= rows);
  sum_ -= rows;
  rows = 0;
}

// Counts a chunk again. Returns true if it may get more rows.
bool RowCount::update_chunk(const Store& store, std::uint64_t ticket) {
  const Progress now = store.progress(ticket);
  forget(store, ticket);
  const Counted counted = count_chunk(store, ticket, now);
  rows_[store.shape().chunk_of(ticket)] = counted.rows;
  sum_ += counted.rows;
  if (now.ticket == ticket && !(now.closed && !now.busy && now.ready == now.rows)) return true;
  if (counted.needs != 0) {
    needs_.push_back({counted.needs, ticket});
    std::push_heap(needs_.begin(), needs_.end());
  }
  return false;
}

std::uint64_t RowCount::count_changes(const Store& store) {
  const Window now = store.window();
  if (rows_.empty() || now.head < head_ || now.tail < tail_ || now.head >= tail_) {
    rows_.assign(store.shape().chunks, 0);
    growing_.clear();
    needs_.clear();
    sum_ = 0;
    head_ = tail_ = now.head;
  }
  for (; head_ < now.head; ++head_) forget(store, head_);
  while (!needs_.empty() && needs_.front().needs < head_) {
    std::pop_heap(needs_.begin(), needs_.end());
    const std::uint64_t ticket = needs_.back().ticket;
    needs_.pop_back();
    if (ticket >= head_) update_chunk(store, ticket);
  }
  std::erase_if(growing_, [&](std::uint64_t ticket) { return ticket < head_ || !update_chunk(store, ticket); });
  for (; tail_ < now.tail; ++tail_) {
    growing_.push_back(tail_);
    if (!update_chunk(store, tail_)) growing_.pop_back();
  }
  return sum_;
}

std::uint64_t RowCount::count(const Store& store) noexcept {
  if (busy_.test_and_set(std::memory_order_acquire)) return count_all(store);
  std::uint64_t rows = 0;
  try {
    rows = count_changes(store);
  } catch (const std::bad_alloc&) {
    rows_.clear();
    rows = count_all(store);
  }
  busy_.clear(std::memory_order_release);
  return rows;
}

}  // namespace shmtree::replay
