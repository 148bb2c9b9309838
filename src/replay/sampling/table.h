// One sampler's state in shared memory, over the rows of a buffer: how likely each row is sampled, and how often it
// was. Who samples has a Sampler besides (sampler.h).
//
// Invariants:
//   - A row may be sampled from a table once its leaf there has its ticket and a weight, and the buffer says that it is
//     ready; the leaf comes first.
//   - A row that was sampled `max_times` from a table has no weight there any more, and gets none again.
//
// Thread safety: any thread of any process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "replay/rows/store.h"
#include "replay/sampling/layout.h"
#include "replay/sampling/leaves.h"

namespace shmtree::replay {

struct TableSpec {
  SamplerKind kind = SamplerKind::kUniform;
  double alpha = 0.6, beta = 0.4, eps = 1e-6;  // kPrioritized's
  std::uint32_t max_times = 0;

  bool has_priorities() const noexcept {
    return kind == SamplerKind::kPrioritized || kind == SamplerKind::kMaxPriority;
  }
  // Those that need none sample from the window, or walk through it.
  bool has_leaves() const noexcept { return has_priorities() || max_times != 0; }
};

struct LeafState {
  float weight = 0;
  std::uint32_t times = 0;
};

class Table {
 public:
  Table(std::shared_ptr<Store> store, const TableSpec& spec, TableHead& head, std::byte* words);

  const TableSpec& spec() const noexcept { return spec_; }
  const Leaves& leaves() const noexcept { return leaves_; }
  // A number, 1.0 before any was given.
  double max_priority() const noexcept;
  // Samples since the buffer was made.
  std::uint64_t samples() const noexcept { return platform::load_relaxed(head_.samples); }
  void count_samples(std::uint64_t rows) const noexcept { platform::add(head_.samples, rows); }

  // What a leaf of that priority weighs: more than nothing. Priorities up to most_priority() have a weight.
  float weight_of(double priority) const noexcept;
  double most_priority() const noexcept { return most_priority_; }
  // The priority of a row of that weight, as far as the weight tells.
  double priority_of(float weight) const noexcept;

  // One more sample of a row; false when it had all it may have, or is not there. Always true without `max_times`.
  bool take(std::uint64_t slot, std::uint64_t ticket) const noexcept;
  // Undoes take() of a row that had that weight.
  void put_back(std::uint64_t slot, std::uint64_t ticket, float weight) const noexcept;
  // Of files: how likely a row is sampled, and how often it was; nothing for one that is not there. And the same of a
  // new buffer, that nobody else has.
  LeafState state(std::uint64_t slot, std::uint64_t ticket) const noexcept;
  void restore(std::uint64_t slot, std::uint64_t ticket, const LeafState& state) const noexcept;
  void restore(double max_priority, std::uint64_t samples) const noexcept;
  // Leaves of a place, by its number, weigh nothing from now on where their rows are no more.
  void drop_stale(std::uint64_t place) const noexcept;

 private:
  friend class Tables;

  void open(std::uint64_t first_slot, std::uint64_t ticket) const noexcept;
  void make_ready(std::uint64_t slot, std::uint64_t ticket, float weight) const noexcept;
  void make_ready(std::uint64_t first_slot, std::uint64_t ticket, std::span<const float> priorities) const noexcept;
  bool update(std::uint64_t slot, std::uint64_t ticket, double priority) const noexcept;
  void drop(std::uint64_t slot, std::uint64_t word) const noexcept;
  void end(std::uint64_t slot, std::uint64_t ticket) const noexcept;
  void raise_max_priority(double priority) const noexcept;
  // Sets the largest priority to 1, as before the first row. Concurrent updates may be lost.
  void reset_max_priority() const noexcept;

  const std::shared_ptr<Store> store_;
  const TableSpec spec_;
  TableHead& head_;
  const Leaves leaves_;
  std::atomic<std::uint64_t>* const times_;  // a word a slot: how often it was sampled, low half of the ticket
  const double most_priority_;
};

}  // namespace shmtree::replay
