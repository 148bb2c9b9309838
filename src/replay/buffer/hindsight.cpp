#include "replay/buffer/hindsight.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "platform/errors.h"
#include "replay/rows/chain.h"
#include "replay/sampling/random.h"

namespace shmtree::replay {

namespace {

constexpr int kMaxTries = 16;  // draws again if writers overwrite the drawn row before relabel() has copied its goal

struct Run {
  Position first{};
  std::uint32_t rows = 0;
};

// The row that achieved the goal, and the earliest ticket that the search for it used.
struct Goal {
  std::uint64_t index = kNoRow, earliest = 0;
};

class Goals {
 public:
  Goals(const Store& store, GoalStrategy strategy, std::uint64_t seed)
      : store_(store), chain_(store), strategy_(strategy), random_(seed) {}

  Random& random() noexcept { return random_; }
  // Returns kNoRow if the row was overwritten.
  Goal draw(std::uint64_t index) {
    const Shape& shape = store_.shape();
    const Position row{shape.ticket_of(index), static_cast<std::uint32_t>(shape.slot_of(index))};
    runs_.clear();
    if (!store_.has_row(row.ticket, row.slot)) return {};
    chain_.each_run(row, [&](Position first, std::uint32_t rows) { return runs_.push_back({first, rows}), true; });
    std::uint64_t earliest = row.ticket;
    if (strategy_ == GoalStrategy::kEpisode) {
      chain_.each_run_before(row, [&](Position first, std::uint32_t rows) {
        runs_.push_back({first, rows});
        earliest = first.ticket;
        return true;
      });
    }
    if (runs_.empty()) return {};
    if (strategy_ == GoalStrategy::kFinal) return {index_in(runs_.back(), runs_.back().rows - 1), earliest};
    std::uint64_t rows = 0;
    for (const Run& run : runs_) rows += run.rows;
    std::uint64_t chosen = random_.below(rows);
    const auto has_it = [&](const Run& run) {
      if (chosen < run.rows) return true;
      chosen -= run.rows;
      return false;
    };
    const Run& run = *std::ranges::find_if(runs_, has_it);
    return {index_in(run, chosen), earliest};
  }

 private:
  std::uint64_t index_in(const Run& run, std::uint64_t row) const noexcept {
    return store_.shape().index_of(run.first.ticket, run.first.slot + row);
  }

  const Store& store_;
  const Chain chain_;
  const GoalStrategy strategy_;
  Random random_;
  std::vector<Run> runs_;
};

Status check_goals(const Spec& spec, const Hindsight& how) {
  if (spec.n_step > 1) {
    return invalid("hindsight needs n_step=1, but the buffer sums the rewards of " + std::to_string(spec.n_step) +
                   " rows; the rewards of the other rows would be those of the old goal");
  }
  if (!std::ranges::binary_search(spec.next, how.achieved)) {
    return invalid(
        "hindsight needs the goals that rows achieve: make the buffer with `next` of Episodes, with the key "
        "of the achieved goal");
  }
  const SpecLeaf &achieved = spec.leaves[how.achieved], &desired = spec.leaves[how.desired];
  if (how.achieved == how.desired || !(achieved == desired)) {
    return invalid("the achieved goal and the desired goal must be two leaves of the same dtype and shape");
  }
  const auto is_goal = [&](const auto& each) { return each.first == how.achieved || each.first == how.desired; };
  if (std::ranges::any_of(spec.stack, is_goal)) return invalid("hindsight does not support stacked goals");
  const DType reward = spec.reward ? dtype_of(spec.leaves[*spec.reward].dtype) : DType::kOther;
  if ((reward != DType::kFloat32 && reward != DType::kFloat64) || !spec.leaves[*spec.reward].shape.empty()) {
    return invalid("hindsight needs one float32 or float64 reward for each row; set `reward` of Episodes");
  }
  return success();
}

}  // namespace

Result<Hindsight> Hindsight::of(const Spec& spec, const HindsightOptions& options) {
  if (!std::isfinite(options.k) || options.k < 0) {
    return invalid("k is " + std::to_string(options.k) + "; it must be finite and not negative");
  }
  Hindsight how{.strategy = options.strategy, .probability = options.k / (1 + options.k)};
  auto achieved = leaf_at(spec, "achieved of Hindsight", options.achieved),
       desired = leaf_at(spec, "desired of Hindsight", options.desired);
  if (!achieved) return std::move(achieved).error();
  if (!desired) return std::move(desired).error();
  how.achieved = *achieved;
  how.desired = *desired;
  Status fits = check_goals(spec, how);
  if (!fits) return std::move(fits).error();
  return how;
}

Status relabel(Buffer& buffer, const Hindsight& how, std::span<const std::uint64_t> indices,
               std::span<std::byte* const> out, std::span<std::uint64_t> goals) {
  const Store& store = *buffer.store();
  const Spec& spec = buffer.spec();
  auto gather = Gather::create(buffer.store(), {.outputs = {{.kind = OutputKind::kSuccessor, .leaf = how.achieved}}});
  if (!gather) return std::move(gather).error();
  std::vector<std::byte*> to{out[how.desired]};
  const auto next = std::ranges::lower_bound(spec.next, how.desired);
  if (next != spec.next.end() && *next == how.desired) {
    to.push_back(out[spec.leaves.size() + static_cast<std::size_t>(next - spec.next.begin())]);
  }
  Goals drawn(store, how.strategy, buffer.new_seed());
  std::vector<std::size_t> rows;  // that still need a goal
  for (std::size_t row = 0; row < indices.size(); ++row) {
    goals[row] = kNoRow;
    if (drawn.random().unit() < how.probability) rows.push_back(row);
  }
  const std::uint64_t bytes = gather->bytes(0);
  std::vector<std::uint64_t> found, earliest;
  const auto gone = std::make_unique<bool[]>(rows.size());
  std::vector<std::byte> copies(rows.size() * bytes);
  for (int tries = 0; tries < kMaxTries && !rows.empty(); ++tries) {
    found.clear(), earliest.clear();
    std::erase_if(rows, [&](std::size_t row) {
      const Goal goal = drawn.draw(indices[row]);
      if (goal.index == kNoRow) return true;
      found.push_back(goal.index);
      earliest.push_back(goal.earliest);
      return false;
    });
    std::byte* const copy = copies.data();
    const auto read = gather->read(found, {&copy, 1}, {gone.get(), found.size()});
    if (!read) return read.error();
    const std::uint64_t head = store.head();  // The search is right if no chunk that it used has left the window.
    std::size_t at = 0;
    std::erase_if(rows, [&](std::size_t row) {
      const std::size_t i = at++;
      if (gone[i] || earliest[i] < head) return false;
      for (std::byte* const desired : to) std::memcpy(desired + row * bytes, copies.data() + i * bytes, bytes);
      goals[row] = found[i];
      return true;
    });
  }
  return success();
}

}  // namespace shmtree::replay
