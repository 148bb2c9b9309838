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

// Samples the rows of the largest priorities, by a best-first search in a tree of maxima.
class MaxPrioritySampler final : public Sampler {
 public:
  MaxPrioritySampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
  LeafWatch* watch() noexcept override { return &watch_; }

 private:
  // Candidate for the next largest priority: a node of a level, or a slot.
  struct Candidate {
    double value = 0;
    std::size_t level = 0;  // kSlot for a slot
    std::uint64_t number = 0;
    std::uint64_t word = 0;  // the leaf's word, of a slot
    bool operator<(const Candidate& other) const noexcept { return value < other.value; }
  };
  static constexpr std::size_t kSlot = ~std::size_t{0};

  Status find(const Sample& chosen, bool distinct) override;
  double total() const noexcept override { return 1; }
  void push(const Candidate& candidate);
  void push_children(const Candidate& of);

  LeafWatch watch_;
  LeafTree<Max> largest_;
  std::vector<Candidate> heap_;
  SlotSet taken_;
};

MaxPrioritySampler::MaxPrioritySampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed)
    : Sampler(std::move(tables), table, seed),
      watch_(this->table().leaves()),
      largest_(this->table().leaves().lines()) {}

void MaxPrioritySampler::push(const Candidate& candidate) {
  if (!(candidate.value > 0)) return;
  heap_.push_back(candidate);
  std::push_heap(heap_.begin(), heap_.end());
}

void MaxPrioritySampler::push_children(const Candidate& of) {
  for (std::uint64_t i = 0; i < 8; ++i) {
    const std::uint64_t child = of.number * 8 + i;
    if (of.level > 0) {
      push({.value = largest_.line(of.level - 1, of.number).node[i], .level = of.level - 1, .number = child});
    } else if (!taken_.contains(child)) {
      const std::uint64_t word = load_relaxed(table().leaves().word(child));
      push({.value = weight_of(word), .level = kSlot, .number = child, .word = word});
    }
  }
}

// Takes the largest candidate: a slot is sampled, a node is replaced by its children. No other candidate is larger.
Status MaxPrioritySampler::find(const Sample& chosen, bool distinct) {
  const Leaves leaves = table().leaves();
  const auto weight = [&](std::uint64_t slot) { return leaves.weight(slot); };
  if (watch_.collect()) {
    largest_.renew(watch_.lines(), weight);
  } else {
    largest_.build(weight);
  }
  taken_.clear(chosen.indices.size());
  const std::size_t kept = add_kept(chosen, taken_);
  add_refused(taken_);
  heap_.clear();
  push({.value = largest_.total(), .level = largest_.levels() - 1, .number = 0});
  std::size_t found = 0;
  while (found < positions_.size() && !heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Candidate top = heap_.back();
    heap_.pop_back();
    if (top.level != kSlot) {
      push_children(top);
    } else if (take_row(top.number, top.word, positions_[found], chosen) == Found::kRow) {
      ++found;
    }
  }
  if (found == positions_.size()) return success();
  if (!distinct && fill_up(chosen)) return success();
  return too_few(chosen.indices.size(), kept + found);
}

}  // namespace

SamplerPtr make_max_priority_sampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed) {
  return std::make_unique<MaxPrioritySampler>(std::move(tables), table, seed);
}

}  // namespace shmtree::replay
