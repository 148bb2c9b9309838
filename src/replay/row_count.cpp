#include "replay/row_count.h"

#include <algorithm>
#include <bit>

#include "replay/store.h"

namespace shmtree::replay {

namespace {

// Of the place with that ticket.
std::uint8_t rows_of(const Store& store, std::uint64_t ticket, const Progress& now) noexcept {
  if (now.ticket != ticket) return 0;
  const std::uint64_t ready = std::min<std::uint64_t>(now.ready, store.shape().rows_per_place);
  const std::uint64_t finals =
      store.shape().finals ? platform::load_relaxed(store.about(ticket).finals) & bits_below(ready) : 0;
  return static_cast<std::uint8_t>(ready - static_cast<std::uint64_t>(std::popcount(finals)));
}

}  // namespace

std::uint64_t RowCount::count_all(const Store& store) noexcept {
  std::uint64_t rows = 0;
  const Window now = store.window();
  for (std::uint64_t ticket = now.head; ticket < now.tail; ++ticket) {
    rows += rows_of(store, ticket, store.progress(ticket));
  }
  return rows;
}

void RowCount::forget(const Store& store, std::uint64_t ticket) noexcept {
  std::uint8_t& rows = rows_[store.shape().place_of(ticket)];
  sum_ -= rows;
  rows = 0;
}

// Whether the place may get more rows.
bool RowCount::look(const Store& store, std::uint64_t ticket) noexcept {
  const Progress now = store.progress(ticket);
  forget(store, ticket);
  const std::uint8_t rows = rows_of(store, ticket, now);
  rows_[store.shape().place_of(ticket)] = rows;
  sum_ += rows;
  return now.ticket == ticket && !(now.closed && !now.busy && now.ready == now.rows);
}

std::uint64_t RowCount::count_changes(const Store& store) {
  const Window now = store.window();
  if (rows_.empty() || now.head < head_ || now.tail < tail_ || now.head >= tail_) {
    rows_.assign(store.shape().places, 0);
    unsettled_.clear();
    sum_ = 0;
    head_ = tail_ = now.head;
  }
  for (; head_ < now.head; ++head_) forget(store, head_);
  std::erase_if(unsettled_, [&](std::uint64_t ticket) { return ticket < head_ || !look(store, ticket); });
  for (; tail_ < now.tail; ++tail_) {
    unsettled_.push_back(tail_);
    if (!look(store, tail_)) unsettled_.pop_back();
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
