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

using namespace platform;

namespace {

constexpr int kFewRounds = 2;           // rounds that find no row, after which rows that are not ready are left out
constexpr int kMaxFailedRounds = 1000;  // rounds that find no row, because other threads keep changing every row

// Returns the child with the interval that contains `rest`; each child's interval is as wide as its value. Subtracts
// the values of the children before it from `rest`.
unsigned child_of(const double* value, double& rest) noexcept {
  double sum = 0, before = 0;
  unsigned child = 0;
  for (unsigned i = 0; i < 7; ++i) {
    sum += value[i];
    const bool is_past = rest >= sum;
    child += is_past ? 1 : 0;
    before = is_past ? sum : before;
  }
  rest -= before;
  return child;
}

// Samples rows in proportion to the weights of their leaves, with a private sum tree.
class WeightedSampler final : public Sampler {
 public:
  WeightedSampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
  LeafWatch* watch() noexcept override { return &watch_; }

 private:
  Status find(const Sample& chosen, bool distinct) override;
  double total() const noexcept override { return total_; }
  void renew_total() override;
  double least() override;

  Status find_in_rounds(const Sample& chosen, bool distinct);
  void look_at_changes();
  template <class Weight>
  void sum_up(bool all, Weight weight);
  void choose();
  void choose_leaf(std::size_t at) noexcept;
  bool accept(std::size_t at, std::uint32_t position, const Sample& chosen, bool distinct);
  void exclude();
  void let_in_again() noexcept;

  LeafWatch watch_;
  LeafTree<Sum> sums_;
  std::unique_ptr<LeafTree<Min>> minima_;  // created on first use
  double total_ = 0;
  // State of the descent for each row to be found:
  std::vector<std::uint64_t> nodes_;  // the current node, at the end the slot
  std::vector<double> rests_;         // remaining offset in the sum below the node
  std::vector<std::uint64_t> words_;  // the leaf's word
  // Slots that may not be sampled again. are_out_: the sums exclude them.
  SlotSet taken_;
  bool are_out_ = false, refusals_are_taken_ = false;
  bool met_stale_ = false;  // the round met leaves of overwritten rows, and has set them to 0
};

WeightedSampler::WeightedSampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed)
    : Sampler(std::move(tables), table, seed), watch_(this->table().leaves()), sums_(this->table().leaves().lines()) {}

template <class Weight>
void WeightedSampler::sum_up(bool all, Weight weight) {
  if (all) {
    sums_.build(weight);
    if (minima_ != nullptr) minima_->build(weight);
    return;
  }
  if (minima_ != nullptr) {
    std::vector<std::uint32_t> lines = watch_.lines();
    minima_->renew(lines, weight);
  }
  sums_.renew(watch_.lines(), weight);
}

void WeightedSampler::look_at_changes() {
  const bool all = !watch_.collect();
  const Leaves leaves = table().leaves();
  if (are_out_) {
    sum_up(all, [&](std::uint64_t slot) { return taken_.contains(slot) ? 0 : leaves.weight(slot); });
  } else {
    sum_up(all, [&](std::uint64_t slot) { return leaves.weight(slot); });
  }
}

void WeightedSampler::renew_total() {
  if (are_out_) watch_.forget();  // an earlier sample ran out of memory
  are_out_ = false;
  look_at_changes();
  total_ = sums_.total();
}

double WeightedSampler::least() {
  if (minima_ == nullptr) {
    minima_ = std::make_unique<LeafTree<Min>>(table().leaves().lines());
    watch_.forget();
    look_at_changes();
  }
  return minima_->total();
}

// Descends level by level for all rows together, so that prefetches of one row overlap with work on others.
void WeightedSampler::choose() {
  const std::size_t count = positions_.size();
  nodes_.assign(count, 0);
  rests_.resize(count);
  words_.resize(count);
  for (double& rest : rests_) rest = random().unit() * sums_.total();
  for (std::size_t level = sums_.levels() - 1; level-- > 0;) {
    for (std::size_t at = 0; at < count; ++at) {
      nodes_[at] = nodes_[at] * 8 + child_of(sums_.line(level, nodes_[at]).node, rests_[at]);
      const void* next = level == 0 ? static_cast<const void*>(&table().leaves().word(nodes_[at] * kLineLeaves))
                                    : &sums_.line(level - 1, nodes_[at]);
      prefetch(next, 1);
    }
  }
  for (std::size_t at = 0; at < count; ++at) choose_leaf(at);
}

// Chooses a leaf of the line by its current weights. If their sum differs from the tree's, the line is summed again.
void WeightedSampler::choose_leaf(std::size_t at) noexcept {
  const std::uint64_t line = nodes_[at];
  const Leaves& leaves = table().leaves();
  std::uint64_t words[kLineLeaves];
  double weights[kLineLeaves];
  for (std::uint64_t i = 0; i < kLineLeaves; ++i) {
    words[i] = load_relaxed(leaves.word(line * kLineLeaves + i));
    weights[i] = weight_of(words[i]);
  }
  if (are_out_) {
    for (std::uint64_t i = 0; i < kLineLeaves; ++i) {
      if (taken_.contains(line * kLineLeaves + i)) weights[i] = 0;
    }
  }
  if (LeafTree<Sum>::of_eight(weights) != sums_.node(0, line)) watch_.mark_stale(line);
  const unsigned child = child_of(weights, rests_[at]);
  nodes_[at] = line * kLineLeaves + child;
  words_[at] = weights[child] > 0 ? words[child] : 0;
  store().fetch_progress_of_chunk(store().shape().ticket_of(nodes_[at]));
}

bool WeightedSampler::accept(std::size_t at, std::uint32_t position, const Sample& chosen, bool distinct) {
  const std::uint64_t slot = nodes_[at];
  if (taken_.contains(slot)) return false;
  const Found found = take_row(slot, words_[at], position, chosen);
  const bool is_to_be_taken = found == Found::kRow ? distinct : found == Found::kNotReady && refusals_are_taken_;
  if (is_to_be_taken) taken_.add(slot);
  met_stale_ = met_stale_ || found == Found::kStale;
  return found == Found::kRow;
}

Status WeightedSampler::find(const Sample& chosen, bool distinct) {
  refusals_are_taken_ = false;
  taken_.clear(distinct ? chosen.indices.size() : 0);
  if (distinct) add_kept(chosen, taken_);
  add_refused(taken_);
  renew_total();
  Status found = find_in_rounds(chosen, distinct);
  let_in_again();
  return found;
}

Status WeightedSampler::find_in_rounds(const Sample& chosen, bool distinct) {
  for (int failures = 0; !positions_.empty() && failures < kMaxFailedRounds;) {
    if (!(sums_.total() > 0)) break;
    choose();
    met_stale_ = false;
    std::size_t left = 0;
    for (std::size_t at = 0; at < positions_.size(); ++at) {
      if (!accept(at, positions_[at], chosen, distinct)) positions_[left++] = positions_[at];
    }
    const std::size_t found = positions_.size() - left;
    positions_.resize(left);
    if (left == 0) break;
    if (found == 0 && !met_stale_) ++failures;
    refusals_are_taken_ = failures >= kFewRounds;
    // Most choices were rows taken already, so the sums exclude these from now on.
    if (2 * found < left && !taken_.empty()) exclude();
    look_at_changes();
  }
  if (positions_.empty()) return success();
  const auto there = std::ranges::count_if(chosen.weights, [](float weight) { return weight > 0; });
  return too_few(chosen.indices.size(), distinct ? static_cast<std::uint64_t>(there) : 0);
}

void WeightedSampler::exclude() {
  are_out_ = true;
  watch_.reserve(taken_.size());
  taken_.for_each([&](std::uint64_t slot) { watch_.mark_stale(slot / kLineLeaves); });
}

void WeightedSampler::let_in_again() noexcept {
  if (!are_out_) return;
  try {
    exclude();
  } catch (const std::bad_alloc&) {
    watch_.forget();
  }
  are_out_ = false;
}

}  // namespace

SamplerPtr make_weighted_sampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed) {
  return std::make_unique<WeightedSampler>(std::move(tables), table, seed);
}

}  // namespace shmtree::replay
