// Samples and copies rows of a replay buffer while other processes write. Does not return rows that were overwritten
// meanwhile.
//
// Thread safety: one thread at a time per Reader. There may be any number of Readers.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "replay/rows/gather.h"
#include "replay/sampling/random.h"

namespace shmtree::test {

// Returns a gather of every leaf of the rows.
inline replay::Gather gather_of_rows(const std::shared_ptr<const replay::Store>& store) {
  replay::GatherOptions options;
  for (std::size_t leaf = 0; leaf < store->shape().leaves.size(); ++leaf) options.outputs.push_back({.leaf = leaf});
  return replay::Gather::create(store, std::move(options)).value();
}

class Reader {
 public:
  Reader(std::shared_ptr<replay::Store> store, std::uint64_t seed)
      : store_(std::move(store)), gather_(gather_of_rows(store_)), random_(seed) {}

  // Samples `indices.size()` rows uniformly, with replacement, and copies them: column i of row n to out[i] + n x its
  // bytes. Fails with kEmpty if there are no rows, or kOutOfSharedMemory if this process has no address space for them.
  Status sample(std::span<std::uint64_t> indices, std::span<std::byte* const> out);
  // Copies rows by their indices. Marks overwritten rows in `gone`, which has the size of `indices`, and returns their
  // number.
  Result<std::size_t> read(std::span<const std::uint64_t> indices, std::span<std::byte* const> out,
                           std::span<bool> gone) const {
    return gather_.read(indices, out, gone);
  }

 private:
  const std::shared_ptr<replay::Store> store_;
  const replay::Gather gather_;
  replay::Random random_;
};

inline Status Reader::sample(std::span<std::uint64_t> indices, std::span<std::byte* const> out) try {
  const auto empty = [] { return Error{.code = Code::kEmpty, .message = "there are no rows to sample"}; };
  for (std::uint64_t& index : indices) {
    index = replay::random_row(*store_, random_);
    if (index == 0) return empty();
  }
  const auto gone = std::make_unique<bool[]>(indices.size());
  auto lost = read(indices, out, {gone.get(), indices.size()});
  if (!lost) return std::move(lost).error();
  if (*lost == 0) return success();
  // Samples again in place of rows that were overwritten meanwhile.
  const std::vector<replay::Leaf>& leaves = store_->shape().leaves;
  std::vector<std::byte*> places(leaves.size());
  for (std::size_t at = 0; at < indices.size(); ++at) {
    for (std::size_t i = 0; i < leaves.size(); ++i) places[i] = out[i] + at * leaves[i].bytes;
    while (gone[at]) {
      indices[at] = replay::random_row(*store_, random_);
      if (indices[at] == 0) return empty();
      auto again = read(indices.subspan(at, 1), places, {gone.get() + at, 1});
      if (!again) return std::move(again).error();
    }
  }
  return success();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree::test
