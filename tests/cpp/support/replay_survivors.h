// Checks a replay buffer after a process was killed while it wrote rows.
#pragma once

#include <vector>

#include "support/replays.h"

namespace shmtree::test {

// Returns true if rows are whole, other processes can continue, and the counts are correct after they did.
inline bool is_whole_after_a_kill(const std::shared_ptr<Store>& store, const std::vector<std::uint64_t>& known,
                                  std::uint64_t number) {
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (const auto there = row_at(store, known[i]); there && *there != i) return false;
  }
  if (!chains_are_right(store)) return false;
  store->arena()->participants().check(0);
  store->arena()->reconcile(patience()).value();
  Writer writer(store, 9);
  for (std::uint64_t i = 0; i < 40; ++i) {
    const auto index = add(writer, number + i);
    if (!index) return false;
    const auto there = row_at(store, *index);
    if (there ? *there != number + i : store->shape().ahead == 0) return false;
  }
  Reader reader(store, 7);
  Batch batch(16);
  return sample(reader, batch).ok() && !batch.is_torn() && chains_are_right(store) && check_rows(*store).empty();
}

struct Kind {
  const char* name;
  ShapeOptions options;
};
inline const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"plain, one row a place", {.capacity = 12, .rows_per_chunk = 1}},
      {"plain", {.capacity = 12, .rows_per_chunk = 4}},
      {"two ahead", {.capacity = 12, .rows_per_chunk = 4, .ahead = 2}},
      {"two ahead, one row a place", {.capacity = 12, .rows_per_chunk = 1, .ahead = 2}},
      {"with last observations", {.capacity = 12, .rows_per_chunk = 4, .ahead = 1, .finals = true}},
      {"two ahead, with last observations, two rows a place",
       {.capacity = 12, .rows_per_chunk = 2, .ahead = 2, .finals = true}},
  };
  return all;
}

}  // namespace shmtree::test
