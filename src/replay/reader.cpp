#include "replay/reader.h"

#include <vector>

#include "replay/uniform.h"

namespace shmtree::replay {

Status Reader::sample(std::span<std::uint64_t> indices, std::span<std::byte* const> out) try {
  const auto empty = [] { return Error{.code = Code::kEmpty, .message = "there are no rows to be drawn"}; };
  for (std::uint64_t& index : indices) {
    index = draw_uniformly(*store_, random_);
    if (index == 0) return empty();
  }
  const auto gone = std::make_unique<bool[]>(indices.size());
  auto lost = read(indices, out, {gone.get(), indices.size()});
  if (!lost) return std::move(lost).error();
  if (*lost == 0) return success();
  // Those that were overwritten meanwhile are drawn anew.
  const std::vector<Leaf>& leaves = store_->shape().leaves;
  std::vector<std::byte*> places(leaves.size());
  for (std::size_t at = 0; at < indices.size(); ++at) {
    for (std::size_t i = 0; i < leaves.size(); ++i) places[i] = out[i] + at * leaves[i].bytes;
    while (gone[at]) {
      indices[at] = draw_uniformly(*store_, random_);
      if (indices[at] == 0) return empty();
      auto again = read(indices.subspan(at, 1), places, {gone.get() + at, 1});
      if (!again) return std::move(again).error();
    }
  }
  return success();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree::replay
