// Calls the reward function of ReplayHindsight for the relabelled rows of a batch.
#include <algorithm>
#include <cstring>

#include "api/replay/replay_state.h"
#include "platform/errors.h"

namespace shmtree::api {

namespace {

// The goals of some rows, one after the other.
struct Goals {
  std::vector<std::int64_t> shape{}, strides{};
  std::vector<std::byte> bytes{};

  Goals(const replay::SpecLeaf& leaf, std::span<const std::size_t> rows, const std::byte* data)
      : shape{static_cast<std::int64_t>(rows.size())}, bytes(rows.size() * leaf.bytes()) {
    shape.insert(shape.end(), leaf.shape.begin(), leaf.shape.end());
    strides = strides_of(shape, leaf.item_bytes);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(bytes.data() + i * leaf.bytes(), data + rows[i] * leaf.bytes(), leaf.bytes());
    }
  }
  ArrayView view(const replay::SpecLeaf& leaf) const {
    return {.dtype = replay::dtype_of(leaf.dtype),
            .shape = shape,
            .strides = strides,
            .data = bytes.data(),
            .item_bytes = leaf.item_bytes,
            .elements = bytes.size() / leaf.item_bytes,
            .read_only = true,
            .c_order = true};
  }
};

}  // namespace

Result<replay::Hindsight> hindsight_of(const replay::Spec& spec, const ReplayHindsight& how) {
  if (!how.reward) return invalid("hindsight needs a reward function: set ReplayHindsight::reward");
  if (how.strategy > ReplayGoals::kEpisode) return no_enumerator("strategy", how.strategy);
  return replay::Hindsight::of(spec,
                               {static_cast<replay::GoalStrategy>(how.strategy), how.k, {how.achieved}, {how.desired}});
}

void set_rewards(const ReplayBatchState& state, const ReplayHindsight& how) {
  const replay::Spec& spec = state.core->buffer->spec();
  const replay::Hindsight& leaves = *state.batch.terms().hindsight;
  std::vector<std::size_t> rows;
  for (std::size_t row = 0; row < state.batch.goals().size(); ++row) {
    if (state.batch.goals()[row] != replay::kNoRow) rows.push_back(row);
  }
  if (rows.empty()) return;
  const auto next = std::ranges::lower_bound(spec.next, leaves.achieved) - spec.next.begin();
  const replay::SpecLeaf& leaf = spec.leaves[leaves.desired];
  const Goals achieved(leaf, rows, state.batch.data(spec.leaves.size() + static_cast<std::size_t>(next)));
  const Goals desired(leaf, rows, state.batch.data(leaves.desired));
  std::vector<double> rewards(rows.size());
  const auto terminated = std::make_unique<bool[]>(rows.size());
  ReplayRelabelled relabelled{.rows = rows,
                              .achieved = achieved.view(leaf),
                              .desired = desired.view(leaf),
                              .rewards = rewards,
                              .terminated = {terminated.get(), rows.size()}};
  how.reward(relabelled);
  state.batch.set_rewards(rewards, relabelled.has_terminated ? relabelled.terminated : std::span<bool>());
}

}  // namespace shmtree::api
