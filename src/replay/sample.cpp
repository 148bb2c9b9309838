#include "replay/sample.h"

#include <utility>

namespace shmtree::replay {

Status Sampling::sample() try {
  const std::size_t rows = picks_.indices.size();
  const auto marks = std::make_unique<bool[]>(rows);
  const std::span gone(marks.get(), rows);
  Status drawn = drawer_.draw(picks_, distinct_);
  if (!drawn) return drawn;
  auto lost = gather_.read(picks_.indices, out_, gone, threads_);
  if (lost && *lost == 0) return success();
  Status replaced = lost ? replace(gone) : Status(std::move(lost).error());
  if (replaced) return success();
  for (std::size_t at = 0; at < rows; ++at) {
    if (gone[at]) picks_.weights[at] = 0;  // put back already, or nothing to put back
  }
  drawer_.put_back(picks_);
  return replaced;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// Rows that are gone are few: each is copied by itself.
Status Sampling::replace(std::span<bool> gone) {
  for (bool are_all = false; !are_all;) {
    Status drawn = drawer_.redraw(picks_, gone, distinct_);
    if (!drawn) return drawn;
    are_all = true;
    for (std::size_t at = 0; at < gone.size(); ++at) {
      if (!gone[at]) continue;
      auto there = read_one(at, gone.subspan(at, 1));
      if (!there) return std::move(there).error();
      are_all = are_all && *there;
    }
  }
  return success();
}

Result<bool> Sampling::read_one(std::size_t at, std::span<bool> gone) {
  std::vector<std::byte*> places(out_.size());
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = out_[i] + at * gather_.bytes(i);
  auto lost = gather_.read(picks_.indices.subspan(at, 1), places, gone);
  if (!lost) return std::move(lost).error();
  return *lost == 0;
}

}  // namespace shmtree::replay
