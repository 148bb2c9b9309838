// Shared state of one sampler over the rows of a buffer: the weight of each row, and how often it was sampled. A
// process samples from a table with a Sampler (sampler.h).
//
// Invariants:
//   - A row may be sampled once its leaf contains the row's ticket and a weight, and the buffer marks the row as ready.
//     A writer writes the leaf first.
//   - A row that was sampled `max_times` times has the weight 0 from then on.
//
// Thread safety: any thread of any process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "replay/rows/row_store.h"
#include "replay/sampling/layout.h"
#include "replay/sampling/leaves.h"

namespace shmtree::replay {

struct TableSpec {
  SamplerKind kind = SamplerKind::kUniform;
  double alpha = 0.6, beta = 0.4, eps = 1e-6;  // used by kPrioritized
  std::uint32_t max_times = 0;

  bool has_priorities() const noexcept {
    return kind == SamplerKind::kPrioritized || kind == SamplerKind::kMaxPriority;
  }
  // Samplers without leaves choose rows of the window at random, or walk over it.
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
  // Returns the largest priority that any row was given, 1.0 before the first. Never NaN.
  double max_priority() const noexcept;
  // Returns the number of samples since the buffer was created.
  std::uint64_t samples() const noexcept { return platform::load_relaxed(head_.samples); }
  void count_samples(std::uint64_t rows) const noexcept { platform::add(head_.samples, rows); }

  // Returns the weight of a priority, always above 0. Defined for priorities up to priority_limit().
  float weight_of(double priority) const noexcept;
  double priority_limit() const noexcept { return priority_limit_; }
  // Returns the priority of a weight, up to rounding and clamping.
  double priority_of(float weight) const noexcept;

  // Counts one more sample of a row. Returns false if the row has no samples left or is gone. Without `max_times`
  // always returns true.
  bool take(std::uint64_t slot, std::uint64_t ticket) const noexcept;
  // Undoes take() of a row that had this weight.
  void put_back(std::uint64_t slot, std::uint64_t ticket, float weight) const noexcept;
  // For files. Returns the weight and the sample count of a row, or zeros if the row is gone.
  LeafState state(std::uint64_t slot, std::uint64_t ticket) const noexcept;
  // Set the state of a row, and the counts of the table. Require a new buffer to which no other process is attached.
  void restore(std::uint64_t slot, std::uint64_t ticket, const LeafState& state) const noexcept;
  void restore(double max_priority, std::uint64_t samples) const noexcept;
  // Sets the weights of overwritten rows to 0 in the chunk with the number `chunk`.
  void drop_stale(std::uint64_t chunk) const noexcept;

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
  std::atomic<std::uint64_t>* const times_;  // one word per slot: number of samples, low half of the ticket
  const double priority_limit_;
};

}  // namespace shmtree::replay
