// Rows of a replay buffer, drawn and copied out while others write: what was overwritten meanwhile is not given out.
//
// Thread safety: one thread at a time; as many Readers as one likes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "replay/gather.h"
#include "replay/random.h"

namespace shmtree::replay {

class Reader {
 public:
  Reader(std::shared_ptr<Store> store, std::uint64_t seed)
      : store_(std::move(store)), gather_(Gather::of_rows(store_).value()), random_(seed) {}

  // Draws as many rows as `indices` is long, each of those there are as likely, one or several times, and copies them:
  // leaf i of row n to out[i] + n x its bytes. kEmpty when there are no rows, kOutOfSharedMemory when this process has
  // no address space for them.
  Status sample(std::span<std::uint64_t> indices, std::span<std::byte* const> out);
  // Copies rows by their indices. Those that are not there any more are marked in `gone`, which has as many; how many.
  Result<std::size_t> read(std::span<const std::uint64_t> indices, std::span<std::byte* const> out,
                           std::span<bool> gone) const {
    return gather_.read(indices, out, gone);
  }

 private:
  const std::shared_ptr<Store> store_;
  const Gather gather_;
  Random random_;
};

}  // namespace shmtree::replay
