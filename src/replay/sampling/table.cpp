#include "replay/sampling/table.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace shmtree::replay {

using namespace platform;

namespace {

double priority_limit_of(const TableSpec& spec) noexcept {
  if (spec.kind == SamplerKind::kMaxPriority) return FLT_MAX;
  if (spec.kind != SamplerKind::kPrioritized || spec.alpha == 0) return DBL_MAX;
  return std::min(std::pow(static_cast<double>(FLT_MAX), 1 / spec.alpha) - spec.eps, DBL_MAX);
}

// Returns the low half of a ticket, as stored in a leaf.
std::uint32_t low(std::uint64_t ticket) noexcept {
  return static_cast<std::uint32_t>(ticket);
}
bool is_older(std::uint32_t ticket, std::uint32_t than) noexcept {
  return static_cast<std::int32_t>(ticket - than) < 0;
}

}  // namespace

Table::Table(std::shared_ptr<Store> store, const TableSpec& spec, TableHead& head, std::byte* words)
    : store_(std::move(store)),
      spec_(spec),
      head_(head),
      leaves_(spec.has_leaves() ? Leaves(words, store_->shape().slots()) : Leaves()),
      times_(spec.max_times == 0
                 ? nullptr
                 : reinterpret_cast<std::atomic<std::uint64_t>*>(words + Leaves::bytes_for(store_->shape().slots()))),
      priority_limit_(priority_limit_of(spec)) {}

double Table::max_priority() const noexcept {
  const double now = load_relaxed(head_.max_priority);
  return now >= 0 && now <= priority_limit_ ? now : 1.0;
}

void Table::raise_max_priority(double priority) const noexcept {
  double now = load_relaxed(head_.max_priority);
  while (!(now >= priority) && !compare_swap(head_.max_priority, now, priority)) {
  }
}

void Table::reset_max_priority() const noexcept {
  store_relaxed(head_.max_priority, 1.0);
}

float Table::weight_of(double priority) const noexcept {
  if (!spec_.has_priorities()) return 1;
  if (spec_.kind == SamplerKind::kPrioritized) {
    const auto base = static_cast<float>(std::min<double>(priority + spec_.eps, FLT_MAX));
    priority = spec_.alpha == 1 ? base : std::pow(base, static_cast<float>(spec_.alpha));
  }
  return static_cast<float>(std::clamp<double>(priority, FLT_MIN, FLT_MAX));
}

double Table::priority_of(float weight) const noexcept {
  if (spec_.kind == SamplerKind::kMaxPriority) return weight > FLT_MIN ? weight : 0;
  if (spec_.kind != SamplerKind::kPrioritized || spec_.alpha == 0) return 1;
  return std::max(std::pow(static_cast<double>(weight), 1 / spec_.alpha) - spec_.eps, 0.0);
}

// Clears the leaves of a chunk that was opened. Plain stores suffice: other processes only set these leaves to 0.
void Table::open(std::uint64_t first_slot, std::uint64_t ticket) const noexcept {
  const std::uint64_t rows = store_->shape().rows_per_chunk, nothing = pack(LeafWord{.ticket = low(ticket)});
  bool is_changed = false;
  for (std::uint64_t slot = first_slot; slot < first_slot + rows; ++slot) {
    is_changed = is_changed || leaves_.weight(slot) != 0;
    store_release(leaves_.word(slot), nothing);
    if (times_ != nullptr) store_release(times_[slot], nothing);
  }
  if (is_changed) leaves_.changed(first_slot);
}

void Table::make_ready(std::uint64_t slot, std::uint64_t ticket, float weight) const noexcept {
  std::uint64_t now = load_acquire(leaves_.word(slot));
  const std::uint64_t ready = pack(LeafWord{.weight = weight, .ticket = low(ticket)});
  // If the chunk is still ours but the leaf has another ticket, the process that opened it died before clearing it.
  while (ticket_of(now) == low(ticket) ? replay::weight_of(now) == 0 : store_->progress(ticket).ticket == ticket) {
    if (compare_swap(leaves_.word(slot), now, ready)) return;
  }
}

void Table::make_ready(std::uint64_t first_slot, std::uint64_t ticket,
                       std::span<const float> priorities) const noexcept {
  for (std::size_t i = 0; i < priorities.size(); ++i) {
    const bool is_given = spec_.has_priorities() && !std::isnan(priorities[i]);
    if (is_given) raise_max_priority(priorities[i]);
    make_ready(first_slot + i, ticket, weight_of(is_given ? priorities[i] : max_priority()));
  }
  leaves_.changed(first_slot);
}

bool Table::update(std::uint64_t slot, std::uint64_t ticket, double priority) const noexcept {
  std::uint64_t now = load_acquire(leaves_.word(slot));
  const std::uint64_t then = pack(LeafWord{.weight = weight_of(priority), .ticket = low(ticket)});
  while (ticket_of(now) == low(ticket) && replay::weight_of(now) > 0) {
    if (compare_swap(leaves_.word(slot), now, then)) return true;
  }
  return false;
}

bool Table::take(std::uint64_t slot, std::uint64_t ticket) const noexcept {
  if (times_ == nullptr) return true;
  std::uint64_t now = load_acquire(times_[slot]);
  for (;;) {
    if (ticket_of(now) != low(ticket) && !is_older(ticket_of(now), low(ticket))) return false;  // of a later row
    const std::uint32_t times = ticket_of(now) == low(ticket) ? static_cast<std::uint32_t>(now) : 0;
    if (times >= spec_.max_times) {  // the process that took the last sample died, or has yet to drop the leaf
      end(slot, ticket);
      return false;
    }
    if (!compare_swap(times_[slot], now, std::uint64_t{low(ticket)} << 32 | (times + 1))) continue;
    if (times + 1 == spec_.max_times) end(slot, ticket);
    return true;
  }
}

void Table::put_back(std::uint64_t slot, std::uint64_t ticket, float weight) const noexcept {
  if (times_ == nullptr) return;
  std::uint64_t now = load_acquire(times_[slot]);
  do {
    if (ticket_of(now) != low(ticket) || static_cast<std::uint32_t>(now) == 0) return;
  } while (!compare_swap(times_[slot], now, now - 1));
  make_ready(slot, ticket, weight);
  leaves_.changed(slot);
}

// Sets the weight of a row to 0 once it was sampled `max_times` times.
void Table::end(std::uint64_t slot, std::uint64_t ticket) const noexcept {
  const std::uint64_t word = load_acquire(leaves_.word(slot));
  if (ticket_of(word) != low(ticket) || replay::weight_of(word) == 0) return;
  drop(slot, word);
  const std::uint64_t now = load_acquire(times_[slot]);
  if (ticket_of(now) != low(ticket) || static_cast<std::uint32_t>(now) >= spec_.max_times) return;
  make_ready(slot, ticket, replay::weight_of(word));  // another process put a sample back meanwhile
  leaves_.changed(slot);
}

void Table::drop(std::uint64_t slot, std::uint64_t word) const noexcept {
  if (compare_swap(leaves_.word(slot), word, pack(LeafWord{.ticket = ticket_of(word)}))) leaves_.changed(slot);
}

// Loads the leaves before the chunk's ticket, so a leaf with another ticket belongs to an older row.
void Table::drop_stale(std::uint64_t chunk) const noexcept {
  const std::uint64_t rows = store_->shape().rows_per_chunk, first = chunk * rows;
  std::uint64_t words[kMaxRowsPerChunk];
  for (std::uint64_t i = 0; i < rows; ++i) words[i] = load_acquire(leaves_.word(first + i));
  const std::uint64_t ticket = store_->progress_of_chunk(chunk).ticket;
  const bool has_left = !store_->is_in_window(ticket);
  for (std::uint64_t i = 0; i < rows; ++i) {
    const bool is_stale = has_left || ticket_of(words[i]) != low(ticket);
    if (!is_stale || replay::weight_of(words[i]) == 0) continue;
    compare_swap(leaves_.word(first + i), words[i], pack(LeafWord{.ticket = ticket_of(words[i])}));
  }
  leaves_.changed(first);
}

LeafState Table::state(std::uint64_t slot, std::uint64_t ticket) const noexcept {
  LeafState state;
  if (const std::uint64_t word = load_acquire(leaves_.word(slot)); ticket_of(word) == low(ticket)) {
    state.weight = replay::weight_of(word);
  }
  if (times_ == nullptr) return state;
  if (const std::uint64_t word = load_acquire(times_[slot]); ticket_of(word) == low(ticket)) {
    state.times = static_cast<std::uint32_t>(word);
  }
  return state;
}

void Table::restore(std::uint64_t slot, std::uint64_t ticket, const LeafState& state) const noexcept {
  if (times_ != nullptr) store_relaxed(times_[slot], std::uint64_t{low(ticket)} << 32 | state.times);
  store_release(leaves_.word(slot), pack(LeafWord{.weight = state.weight, .ticket = low(ticket)}));
  leaves_.changed(slot);
}

void Table::restore(double max_priority, std::uint64_t samples) const noexcept {
  store_relaxed(head_.max_priority, max_priority);
  store_relaxed(head_.samples, samples);
}

}  // namespace shmtree::replay
