#include "replay/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "platform/dcheck.h"

namespace shmtree::replay {

Sampler::Sampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed) noexcept
    : tables_(std::move(tables)),
      number_(table),
      seed_(seed),
      identity_(tables_->store()->arena()->current_identity()),
      random_(seed) {}

Result<std::unique_ptr<Sampler>> Sampler::make(std::shared_ptr<Tables> tables, std::size_t table,
                                               std::uint64_t seed) try {
  if (table >= tables->size()) {
    return Error{
        .code = Code::kInvalid,
        .message = "no sampler number " + std::to_string(table) + "; the buffer has " + std::to_string(tables->size())};
  }
  const TableSpec spec = (*tables)[table].spec();
  std::unique_ptr<Sampler> sampler;
  switch (spec.kind) {
    case SamplerKind::kUniform:
    case SamplerKind::kPrioritized:
      if (spec.has_leaves()) {
        sampler = make_weighted_sampler(std::move(tables), table, seed);
      } else {
        sampler = make_uniform_sampler(std::move(tables), table, seed);
      }
      break;
    case SamplerKind::kFifo:
    case SamplerKind::kLifo: sampler = make_fifo_lifo_sampler(std::move(tables), table, seed); break;
    case SamplerKind::kMaxPriority: sampler = make_max_priority_sampler(std::move(tables), table, seed); break;
  }
  return sampler;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

void Sampler::key_anew_after_fork() noexcept {
  const Identity now = store().arena()->current_identity();
  if (std::exchange(identity_, now) != now) random_ = Random(seed_ ^ Random(now).next());
}

Status Sampler::find_all(const Sample& chosen, bool distinct) {
  SHMTREE_DCHECK(chosen.indices.size() == chosen.weights.size() && is_wanted_.size() == chosen.indices.size());
  key_anew_after_fork();
  for (const std::uint32_t at : positions_) chosen.weights[at] = 0;
  Status found = or_out_of_memory([&] { return find(chosen, distinct); });
  if (found) return found;
  for (std::size_t at = 0; at < chosen.indices.size(); ++at) {
    if (!is_wanted_[at]) continue;
    put_back({chosen.indices.subspan(at, 1), chosen.weights.subspan(at, 1)});
    chosen.weights[at] = 0;
  }
  return found;
}

Status Sampler::sample(const Sample& chosen, bool distinct) try {
  refused_.clear();
  positions_.resize(chosen.indices.size());
  std::iota(positions_.begin(), positions_.end(), 0u);
  is_wanted_.assign(chosen.indices.size(), true);
  Status found = find_all(chosen, distinct);
  if (found) table().count_samples(chosen.indices.size());
  return found;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status Sampler::resample(const Sample& chosen, std::span<const bool> gone, bool distinct) try {
  SHMTREE_DCHECK(gone.size() == chosen.indices.size());
  positions_.clear();
  is_wanted_.assign(gone.begin(), gone.end());
  for (std::size_t at = 0; at < gone.size(); ++at) {
    if (!gone[at]) continue;
    refused_.push_back(chosen.indices[at]);
    positions_.push_back(static_cast<std::uint32_t>(at));
  }
  return find_all(chosen, distinct);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

void Sampler::put_back(const Sample& chosen) const noexcept {
  for (std::size_t at = 0; takes_leaves() && at < chosen.indices.size(); ++at) {
    if (chosen.weights[at] > 0) tables_->put_back(number_, chosen.indices[at], chosen.weights[at]);
  }
}

Sampler::Found Sampler::take_row(std::uint64_t slot, std::uint64_t word, std::uint32_t position,
                                 const Sample& chosen) const noexcept {
  SHMTREE_DCHECK(position < chosen.indices.size());
  const Shape& shape = store().shape();
  if (replay::weight_of(word) == 0) return Found::kNothing;
  if (slot >= table().leaves().slots()) {  // beyond the last row: the word is damaged
    platform::store_relaxed(table().leaves().word(slot), std::uint64_t{0});
    table().leaves().changed(slot);
    return Found::kStale;
  }
  const Progress now = store().progress_of_chunk(shape.ticket_of(slot));
  if (ticket_of(word) != static_cast<std::uint32_t>(now.ticket) || !store().is_in_window(now.ticket)) {
    table().drop_stale(shape.ticket_of(slot));
    return Found::kStale;
  }
  if (shape.slot_of(slot) >= now.ready) return Found::kNotReady;
  if (!table().take(slot, now.ticket)) return Found::kNothing;
  chosen.indices[position] = shape.index_of(now.ticket, shape.slot_of(slot));
  chosen.weights[position] = replay::weight_of(word);
  return Found::kRow;
}

std::size_t Sampler::add_kept(const Sample& chosen, SlotSet& slots) const {
  std::size_t kept = 0;
  for (std::size_t at = 0; at < chosen.indices.size(); ++at) {
    if (chosen.weights[at] > 0) kept += slots.add(tables_->slot_of(chosen.indices[at])) ? 1 : 0;
  }
  return kept;
}

void Sampler::add_refused(SlotSet& slots) const {
  for (const std::uint64_t index : refused_) slots.add(tables_->slot_of(index));
}

// --- Copies

Status Sampler::sample_and_copy(const Gather& gather, const Sample& chosen, std::span<std::byte* const> out,
                                bool distinct, unsigned threads) try {
  const std::size_t rows = chosen.indices.size();
  const auto marks = std::make_unique<bool[]>(rows);
  const std::span gone(marks.get(), rows);
  Status sampled = sample(chosen, distinct);
  if (!sampled) return sampled;
  Status copied = or_out_of_memory([&]() -> Status {
    auto lost = gather.read(chosen.indices, out, gone, threads);
    if (!lost) return std::move(lost).error();
    return *lost == 0 ? success() : replace(gather, chosen, gone, out, distinct);
  });
  if (!copied) put_back(chosen);  // also the replacements that could not be copied
  return copied;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// Replaces the rows marked in `gone`, and copies each on its own, since they are few.
Status Sampler::replace(const Gather& gather, const Sample& chosen, std::span<bool> gone,
                        std::span<std::byte* const> out, bool distinct) {
  std::vector<std::byte*> destinations(out.size());
  for (bool are_all = false; !are_all;) {
    Status sampled = resample(chosen, gone, distinct);
    if (!sampled) return sampled;
    are_all = true;
    for (std::size_t at = 0; at < gone.size(); ++at) {
      if (!gone[at]) continue;
      for (std::size_t i = 0; i < destinations.size(); ++i) destinations[i] = out[i] + at * gather.bytes(i);
      auto lost = gather.read(chosen.indices.subspan(at, 1), destinations, gone.subspan(at, 1));
      if (!lost) return std::move(lost).error();
      are_all = are_all && *lost == 0;
    }
  }
  return success();
}

// --- Probabilities of rows

void Sampler::describe(const Sample& chosen, std::span<double> probabilities, std::span<float> importances, double beta,
                       bool of_buffer) {
  SHMTREE_DCHECK(probabilities.empty() || probabilities.size() == chosen.weights.size());
  SHMTREE_DCHECK(importances.empty() || importances.size() == chosen.weights.size());
  const double sum = probabilities.empty() ? 1 : total();
  for (std::size_t at = 0; at < probabilities.size(); ++at) probabilities[at] = chosen.weights[at] / sum;
  if (importances.empty()) return;
  double min_weight = of_buffer ? least() : std::ranges::min(chosen.weights);
  for (std::size_t at = 0; at < importances.size(); ++at) {
    const auto ratio = static_cast<float>(min_weight / chosen.weights[at]);
    importances[at] = beta == 1 ? ratio : std::pow(ratio, static_cast<float>(beta));
  }
}

Result<Sampler::Weights> Sampler::weigh(bool with_least) try {
  renew_total();
  return Weights{.total = total(), .least = with_least ? least() : 0};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

bool Sampler::fill_up(const Sample& chosen) const {
  SlotSet excluded;
  add_refused(excluded);
  std::vector<std::uint32_t> again;  // positions of the rows to repeat
  for (std::uint32_t at = 0; at < chosen.indices.size(); ++at) {
    if (chosen.weights[at] > 0 && !excluded.contains(tables_->slot_of(chosen.indices[at]))) again.push_back(at);
  }
  std::size_t next = 0, kept = 0, count = again.size();  // rows before `kept` may be sampled once more
  for (const std::uint32_t to : positions_) {
    while (!(chosen.weights[to] > 0)) {
      if (next == count) {
        if (kept == 0) return false;
        count = std::exchange(kept, 0);
        next = 0;
      }
      const std::uint32_t from = again[next++];
      const std::uint64_t index = chosen.indices[from];
      if (!table().take(tables_->slot_of(index), store().shape().ticket_of(index))) continue;
      again[kept++] = from;
      chosen.indices[to] = index;
      chosen.weights[to] = chosen.weights[from];
    }
  }
  return true;
}

Error Sampler::too_few(std::uint64_t wanted, std::uint64_t found) const {
  if (found == 0) return Error{.code = Code::kEmpty, .message = "there are no rows to sample"};
  const bool may_come = table().spec().max_times != 0;
  return Error{
      .code = may_come ? Code::kEmpty : Code::kInvalid,
      .message = "cannot sample " + std::to_string(wanted) + " different rows: there are " + std::to_string(found)};
}

}  // namespace shmtree::replay
