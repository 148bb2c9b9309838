#include "replay/reader.h"

#include <algorithm>

#include "platform/copy.h"

namespace shmtree::replay {

namespace {

constexpr std::size_t kAhead = 8;      // rows that are on their way into the caches while one is copied
constexpr std::size_t kFetched = 512;  // bytes of a leaf that are asked for ahead: the rest comes by itself
constexpr int kFewDraws = 64;          // that found no row; then somebody looks whether there are any

}  // namespace

bool Reader::is_there(std::uint64_t index) const noexcept {
  const std::uint64_t rows = store_->shape().rows_per_place;
  return store_->has_row(index / rows, index % rows);
}

// One of the rows of the window. Places are not full, or have another ticket: such draws are repeated. False when there
// is no row.
bool Reader::draw(std::uint64_t& index) noexcept {
  const std::uint64_t rows = store_->shape().rows_per_place;
  do {
    const Window window = store_->window();
    const std::uint64_t first = window.head * rows, count = (window.tail - window.head) * rows;
    for (int tries = 0; count != 0 && tries < kFewDraws; ++tries) {
      index = first + random_.below(count);
      if (is_there(index)) return true;
    }
  } while (store_->size() != 0);
  return false;
}

void Reader::fetch(std::uint64_t index) const noexcept {
  const Shape& shape = store_->shape();
  const std::uint64_t ticket = index / shape.rows_per_place, row = index % shape.rows_per_place;
  if (shape.record_bytes != 0) platform::prefetch(store_->leaf({}, ticket, row), shape.record_bytes);
  for (const Leaf& leaf : shape.leaves) {
    if (leaf.has_column) platform::prefetch(store_->leaf(leaf, ticket, row), std::min(leaf.bytes, kFetched));
  }
}

bool Reader::copy(std::uint64_t index, std::size_t at, std::span<std::byte* const> out) const noexcept {
  const Shape& shape = store_->shape();
  const std::uint64_t ticket = index / shape.rows_per_place, row = index % shape.rows_per_place;
  for (std::size_t i = 0; i < shape.leaves.size(); ++i) {
    const Leaf& leaf = shape.leaves[i];
    const std::byte* from = store_->leaf(leaf, ticket, row);
    if (from == nullptr) return false;
    platform::copy_racing(out[i] + at * leaf.bytes, from, leaf.bytes);
  }
  return true;
}

Result<std::size_t> Reader::read(std::span<const std::uint64_t> indices, std::span<std::byte* const> out,
                                 std::span<bool> gone) const {
  for (std::size_t at = 0; at < indices.size(); ++at) {
    if (at + kAhead < indices.size()) fetch(indices[at + kAhead]);
    gone[at] = !is_there(indices[at]);
    if (!gone[at] && !copy(indices[at], at, out)) {
      return Error{.code = Code::kOutOfSharedMemory, .message = "no address space left to map rows of a replay buffer"};
    }
  }
  platform::fence_acquire();  // the bytes were read before this asks whose they were
  std::size_t count = 0;
  for (std::size_t at = 0; at < indices.size(); ++at) {
    gone[at] = gone[at] || !is_there(indices[at]);
    count += gone[at];
  }
  return count;
}

Status Reader::sample(std::span<std::uint64_t> indices, std::span<std::byte* const> out) try {
  const auto empty = [] { return Error{.code = Code::kEmpty, .message = "there are no rows to be drawn"}; };
  for (std::uint64_t& index : indices) {
    if (!draw(index)) return empty();
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
      if (!draw(indices[at])) return empty();
      auto again = read(indices.subspan(at, 1), places, {gone.get() + at, 1});
      if (!again) return std::move(again).error();
    }
  }
  return success();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree::replay
