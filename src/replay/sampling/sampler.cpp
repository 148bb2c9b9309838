#include "replay/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

namespace shmtree::replay {

Drawer::Drawer(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed) noexcept
    : tables_(std::move(tables)),
      number_(table),
      seed_(seed),
      identity_(tables_->store()->arena()->current_identity()),
      random_(seed) {}

Result<std::unique_ptr<Drawer>> Drawer::make(std::shared_ptr<Tables> tables, std::size_t table,
                                             std::uint64_t seed) try {
  if (table >= tables->size()) {
    return Error{.code = Code::kInvalid,
                 .message = "sampler " + std::to_string(table) + ", where there are " + std::to_string(tables->size())};
  }
  const TableSpec spec = (*tables)[table].spec();
  std::unique_ptr<Drawer> drawer;
  switch (spec.kind) {
    case SamplerKind::kUniform:
    case SamplerKind::kPrioritized:
      if (spec.has_leaves()) {
        drawer = make_tree_drawer(std::move(tables), table, seed);
      } else {
        drawer = make_uniform_drawer(std::move(tables), table, seed);
      }
      break;
    case SamplerKind::kFifo:
    case SamplerKind::kLifo: drawer = make_walk_drawer(std::move(tables), table, seed); break;
    case SamplerKind::kMaxPriority: drawer = make_largest_drawer(std::move(tables), table, seed); break;
  }
  return drawer;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

void Drawer::key_anew_after_fork() noexcept {
  const Identity now = store().arena()->current_identity();
  if (std::exchange(identity_, now) != now) random_ = Random(seed_ ^ Random(now).next());
}

Status Drawer::find_all(const Picks& picks, bool distinct) {
  key_anew_after_fork();
  for (const std::uint32_t at : positions_) picks.weights[at] = 0;
  Status found = find(picks, distinct);
  if (found) return found;
  for (std::size_t at = 0; at < picks.indices.size(); ++at) {
    if (is_wanted_[at]) put_back({picks.indices.subspan(at, 1), picks.weights.subspan(at, 1)});
  }
  return found;
}

Status Drawer::draw(const Picks& picks, bool distinct) try {
  refused_.clear();
  positions_.resize(picks.indices.size());
  std::iota(positions_.begin(), positions_.end(), 0u);
  is_wanted_.assign(picks.indices.size(), true);
  Status found = find_all(picks, distinct);
  if (found) table().count_samples(picks.indices.size());
  return found;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status Drawer::redraw(const Picks& picks, std::span<const bool> gone, bool distinct) try {
  positions_.clear();
  is_wanted_.assign(gone.begin(), gone.end());
  for (std::size_t at = 0; at < gone.size(); ++at) {
    if (!gone[at]) continue;
    refused_.push_back(picks.indices[at]);
    positions_.push_back(static_cast<std::uint32_t>(at));
  }
  return find_all(picks, distinct);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

void Drawer::put_back(const Picks& picks) const noexcept {
  for (std::size_t at = 0; takes_leaves() && at < picks.indices.size(); ++at) {
    if (picks.weights[at] > 0) tables_->put_back(number_, picks.indices[at], picks.weights[at]);
  }
}

Drawer::Found Drawer::take_row(std::uint64_t slot, std::uint64_t word, std::uint32_t position,
                               const Picks& picks) const noexcept {
  const Shape& shape = store().shape();
  if (replay::weight_of(word) == 0) return Found::kNothing;
  if (slot >= table().leaves().slots()) {  // behind the last row: somebody damaged it
    platform::store_relaxed(table().leaves().word(slot), std::uint64_t{0});
    table().leaves().changed(slot);
    return Found::kStale;
  }
  const Progress now = store().progress_of_place(shape.ticket_of(slot));
  if (ticket_of(word) != static_cast<std::uint32_t>(now.ticket) || !store().is_in_window(now.ticket)) {
    table().drop_stale(shape.ticket_of(slot));
    return Found::kStale;
  }
  if (shape.slot_of(slot) >= now.ready) return Found::kNotReady;
  if (!table().take(slot, now.ticket)) return Found::kNothing;
  picks.indices[position] = shape.index_of(now.ticket, shape.slot_of(slot));
  picks.weights[position] = replay::weight_of(word);
  return Found::kRow;
}

std::size_t Drawer::add_kept(const Picks& picks, SlotSet& slots) const {
  std::size_t kept = 0;
  for (std::size_t at = 0; at < picks.indices.size(); ++at) {
    if (picks.weights[at] > 0) kept += slots.add(tables_->slot_of(picks.indices[at])) ? 1 : 0;
  }
  return kept;
}

void Drawer::add_refused(SlotSet& slots) const {
  for (const std::uint64_t index : refused_) slots.add(tables_->slot_of(index));
}

// --- Copies

Status Drawer::draw_and_copy(const Gather& gather, const Picks& picks, std::span<std::byte* const> out, bool distinct,
                             unsigned threads) try {
  const std::size_t rows = picks.indices.size();
  const auto marks = std::make_unique<bool[]>(rows);
  const std::span gone(marks.get(), rows);
  Status drawn = draw(picks, distinct);
  if (!drawn) return drawn;
  auto lost = gather.read(picks.indices, out, gone, threads);
  if (lost && *lost == 0) return success();
  Status replaced = lost ? replace(gather, picks, gone, out, distinct) : Status(std::move(lost).error());
  if (replaced) return success();
  for (std::size_t at = 0; at < rows; ++at) {
    if (gone[at]) picks.weights[at] = 0;  // put back already, or nothing to put back
  }
  put_back(picks);
  return replaced;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// Rows that are gone are few: each is copied by itself.
Status Drawer::replace(const Gather& gather, const Picks& picks, std::span<bool> gone, std::span<std::byte* const> out,
                       bool distinct) {
  std::vector<std::byte*> places(out.size());
  for (bool are_all = false; !are_all;) {
    Status drawn = redraw(picks, gone, distinct);
    if (!drawn) return drawn;
    are_all = true;
    for (std::size_t at = 0; at < gone.size(); ++at) {
      if (!gone[at]) continue;
      for (std::size_t i = 0; i < places.size(); ++i) places[i] = out[i] + at * gather.bytes(i);
      auto lost = gather.read(picks.indices.subspan(at, 1), places, gone.subspan(at, 1));
      if (!lost) return std::move(lost).error();
      are_all = are_all && *lost == 0;
    }
  }
  return success();
}

// --- What is known of the rows

void Drawer::describe(const Picks& picks, std::span<double> probabilities, std::span<float> importances, double beta,
                      bool of_buffer) {
  const double sum = probabilities.empty() ? 1 : total();
  for (std::size_t at = 0; at < probabilities.size(); ++at) probabilities[at] = picks.weights[at] / sum;
  if (importances.empty()) return;
  double least_weight = of_buffer ? least() : std::ranges::min(picks.weights);
  for (std::size_t at = 0; at < importances.size(); ++at) {
    const auto ratio = static_cast<float>(least_weight / picks.weights[at]);
    importances[at] = beta == 1 ? ratio : std::pow(ratio, static_cast<float>(beta));
  }
}

Result<Drawer::Weights> Drawer::weigh(bool with_least) try {
  renew_total();
  return Weights{.total = total(), .least = with_least ? least() : 0};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

bool Drawer::fill_up(const Picks& picks) const {
  SlotSet left_out;
  add_refused(left_out);
  std::vector<std::uint32_t> again;  // positions
  for (std::uint32_t at = 0; at < picks.indices.size(); ++at) {
    if (picks.weights[at] > 0 && !left_out.contains(tables_->slot_of(picks.indices[at]))) again.push_back(at);
  }
  std::size_t next = 0, kept = 0, count = again.size();  // those before `kept` may be drawn once more
  for (const std::uint32_t to : positions_) {
    while (!(picks.weights[to] > 0)) {
      if (next == count) {
        if (kept == 0) return false;
        count = std::exchange(kept, 0);
        next = 0;
      }
      const std::uint32_t from = again[next++];
      const std::uint64_t index = picks.indices[from];
      if (!table().take(tables_->slot_of(index), store().shape().ticket_of(index))) continue;
      again[kept++] = from;
      picks.indices[to] = index;
      picks.weights[to] = picks.weights[from];
    }
  }
  return true;
}

Error Drawer::too_few(std::uint64_t wanted, std::uint64_t found) const {
  if (found == 0) return Error{.code = Code::kEmpty, .message = "there are no rows to be drawn"};
  const bool may_come = table().spec().max_times != 0;
  return Error{
      .code = may_come ? Code::kEmpty : Code::kInvalid,
      .message = "a draw of " + std::to_string(wanted) + " different rows, where there are " + std::to_string(found)};
}

}  // namespace shmtree::replay
