#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "replay/sampling/leaf_tree.h"
#include "replay/sampling/sampler.h"
#include "replay/sampling/slot_set.h"

namespace shmtree::replay {

using platform::load_relaxed;

namespace {

constexpr int kMaxWalks = 100;  // limit on walks while writers are faster than the walk

// Samples the oldest or the newest rows. Without leaves it walks over the window, with leaves over those with a weight.
class FifoLifoSampler final : public Sampler {
 public:
  FifoLifoSampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
  LeafWatch* watch() noexcept override { return leaves_ == nullptr ? nullptr : &leaves_->watch; }

 private:
  // Tree of maximum weights, which tells if a node has any leaf that may be sampled.
  struct Marked {
    explicit Marked(const Leaves& leaves) : watch(leaves), tree(leaves.lines()) {}
    LeafWatch watch;
    LeafTree<Max> tree;
  };
  Status find(const Sample& chosen, bool distinct) override;
  double total() const noexcept override { return 1; }
  void walk_window(const Sample& chosen);
  void walk_leaves(const Sample& chosen);
  void walk_slots(std::uint64_t first, std::uint64_t end, const Sample& chosen);
  bool is_oldest_first() const noexcept { return table().spec().kind == SamplerKind::kFifo; }

  std::unique_ptr<Marked> leaves_;  // only with `max_times`
  SlotSet taken_;
  std::size_t found_ = 0;
};

FifoLifoSampler::FifoLifoSampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed)
    : Sampler(std::move(tables), table, seed) {
  if (!this->table().leaves().empty()) leaves_ = std::make_unique<Marked>(this->table().leaves());
}

Status FifoLifoSampler::find(const Sample& chosen, bool distinct) {
  taken_.clear(chosen.indices.size());
  const std::size_t kept = add_kept(chosen, taken_);
  add_refused(taken_);
  found_ = 0;
  for (int walks = 0; walks < kMaxWalks; ++walks) {
    const Window window = store().window();
    const std::size_t before = found_;
    if (leaves_ == nullptr) {
      walk_window(chosen);
    } else {
      walk_leaves(chosen);
    }
    if (found_ == positions_.size()) return success();
    if (store().window().head == window.head) break;
    // Rows have left the window during the walk, so it walks again, without the rows already found.
    for (std::size_t i = before; i < found_; ++i) taken_.add(tables_->slot_of(chosen.indices[positions_[i]]));
  }
  if (!distinct && fill_up(chosen)) return success();
  return too_few(chosen.indices.size(), kept + found_);
}

void FifoLifoSampler::walk_window(const Sample& chosen) {
  const std::uint64_t rows = store().shape().rows_per_chunk;
  const Window window = store().window();
  const std::uint64_t end = (window.tail - window.head) * rows;
  for (std::uint64_t at = 0; at < end && found_ < positions_.size(); ++at) {
    const std::uint64_t index = is_oldest_first() ? window.head * rows + at : window.tail * rows - 1 - at;
    const bool is_there = store().has_row(store().shape().ticket_of(index), store().shape().slot_of(index));
    if (!is_there || taken_.contains(tables_->slot_of(index))) continue;
    const std::uint32_t position = positions_[found_++];
    chosen.indices[position] = index;
    chosen.weights[position] = 1;
  }
}

// Walks over one range of slots or, if the window wraps around, over two.
void FifoLifoSampler::walk_leaves(const Sample& chosen) {
  const Leaves leaves = table().leaves();
  const auto weight = [&](std::uint64_t slot) { return leaves.weight(slot); };
  if (leaves_->watch.collect()) {
    leaves_->tree.renew(leaves_->watch.lines(), weight);
  } else {
    leaves_->tree.build(weight);
  }
  const std::uint64_t rows = store().shape().rows_per_chunk;
  const Window window = store().window();
  const std::uint64_t first = tables_->slot_of(window.head * rows), end = first + (window.tail - window.head) * rows;
  const std::uint64_t before_wrap = std::min(end, leaves.slots());
  if (is_oldest_first()) {
    walk_slots(first, before_wrap, chosen);
    walk_slots(0, end - before_wrap, chosen);
  } else {
    walk_slots(0, end - before_wrap, chosen);
    walk_slots(first, before_wrap, chosen);
  }
}

void FifoLifoSampler::walk_slots(std::uint64_t first, std::uint64_t end, const Sample& chosen) {
  if (first >= end) return;
  const bool upwards = is_oldest_first();
  const std::uint64_t last_line = (upwards ? end - 1 : first) / kLineLeaves;
  std::uint64_t line = leaves_->tree.nearest((upwards ? first : end - 1) / kLineLeaves, upwards);
  while (line != LeafTree<Max>::kNone && (upwards ? line <= last_line : line >= last_line)) {
    for (std::uint64_t i = 0; i < kLineLeaves && found_ < positions_.size(); ++i) {
      const std::uint64_t slot = line * kLineLeaves + (upwards ? i : kLineLeaves - 1 - i);
      if (slot < first || slot >= end || taken_.contains(slot)) continue;
      const std::uint64_t word = load_relaxed(table().leaves().word(slot));
      if (take_row(slot, word, positions_[found_], chosen) == Found::kRow) ++found_;
    }
    if (found_ == positions_.size() || (!upwards && line == 0)) return;
    line = leaves_->tree.nearest(upwards ? line + 1 : line - 1, upwards);
  }
}

}  // namespace

SamplerPtr make_fifo_lifo_sampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed) {
  return std::make_unique<FifoLifoSampler>(std::move(tables), table, seed);
}

}  // namespace shmtree::replay
