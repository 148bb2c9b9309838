// Rows of a replay buffer, drawn and copied out while others write: what was overwritten meanwhile is not given out.
//
// Thread safety: one thread at a time; as many Readers as one likes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "replay/store.h"

namespace shmtree::replay {

// Counter-based random numbers (splitmix64, G. Steele et al., OOPSLA 2014): a child of a fork goes on with other ones,
// since the key is the participant's.
class Random {
 public:
  explicit Random(std::uint64_t key) noexcept : state_(key * 0x9e3779b97f4a7c15u) {}
  std::uint64_t next() noexcept {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  // 0 to bound - 1, each as likely (D. Lemire, ACM TOMACS 2019, without the last 2^-64).
  std::uint64_t below(std::uint64_t bound) noexcept {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>(static_cast<Wide>(next()) * bound >> 64);
  }

 private:
  std::uint64_t state_;
};

class Reader {
 public:
  Reader(std::shared_ptr<Store> store, std::uint64_t seed) noexcept : store_(std::move(store)), random_(seed) {}

  // Draws as many rows as `indices` is long, each of those there are as likely, one or several times, and copies them:
  // leaf i of row n to out[i] + n x its bytes. kEmpty when there are no rows, kOutOfSharedMemory when this process has
  // no address space for them.
  Status sample(std::span<std::uint64_t> indices, std::span<std::byte* const> out);
  // Copies rows by their indices. Those that are not there any more are marked in `gone`, which has as many; how many.
  Result<std::size_t> read(std::span<const std::uint64_t> indices, std::span<std::byte* const> out,
                           std::span<bool> gone) const;

 private:
  bool draw(std::uint64_t& index) noexcept;
  void fetch(std::uint64_t index) const noexcept;
  bool copy(std::uint64_t index, std::size_t at, std::span<std::byte* const> out) const noexcept;
  bool is_there(std::uint64_t index) const noexcept;

  const std::shared_ptr<Store> store_;
  Random random_;
};

}  // namespace shmtree::replay
