// Hindsight experience replay (M. Andrychowicz et al., NeurIPS 2017): the desired goals of some sampled rows are
// replaced by goals that their episodes achieved.
//
// The goal that a row achieved is the value of the achieved-goal leaf in its successor, so the buffer needs this leaf
// in Spec::next. In an unfinished episode, only rows that can be sampled give goals. Rows that have left the window
// give none.
//
// Thread safety: any number of threads.
#pragma once

#include <cstdint>
#include <span>

#include "replay/buffer/buffer.h"

namespace shmtree::replay {

// Rows of an episode from which a goal is chosen, all with the same probability.
enum class GoalStrategy : std::uint8_t {
  kFuture,   // the row itself and those after it
  kFinal,    // the last row
  kEpisode,  // all rows
};

struct HindsightOptions {
  GoalStrategy strategy = GoalStrategy::kFuture;
  double k = 4;                         // relabelled rows for each row that keeps its goal
  SpecPart::Key achieved{}, desired{};  // keys or paths
};

struct Hindsight {
  GoalStrategy strategy = GoalStrategy::kFuture;
  double probability = 0;                 // that a row is relabelled
  std::size_t achieved = 0, desired = 0;  // leaves

  // Returns kInvalid, with the reason, if the buffer has no such goals, sums the rewards of several rows, or has no
  // rewards.
  static Result<Hindsight> of(const Spec& spec, const HindsightOptions& options);
};

// Chooses goals for some of the rows, and copies them to `out`, the arrays of the batch's data, in place of the rows'
// own. Sets `goals` to the index of the row that achieved the goal, or to kNoRow for a row that keeps its own goal. A
// row keeps its goal if it was overwritten, or if no goal could be read. Errors: those of
// Gather::read().
Status relabel(Buffer& buffer, const Hindsight& how, std::span<const std::uint64_t> indices,
               std::span<std::byte* const> out, std::span<std::uint64_t> goals);

}  // namespace shmtree::replay
