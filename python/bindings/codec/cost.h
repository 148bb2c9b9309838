// What decoding one message may cost, beyond what its bytes say. docs/security.md has the table of all kinds.
//
// A frame is as large as its values, with few exceptions: references (expansion.h), buffers that several nodes share,
// and keys with equal hashes. Each of them is counted here, and refused when it is out of proportion.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// Bytes that are copied out of a message. Writers give each text a buffer of its own, so one that several nodes copy is
// as good as never there.
class CopiedBytes {
 public:
  bool allows(std::uint64_t bytes, std::uint64_t message_bytes) noexcept {
    bytes_ = std::min(bytes_, kMost) + std::min(bytes, kMost);
    return bytes_ <= kFreely + kTimes * message_bytes;
  }

 private:
  static constexpr std::uint64_t kMost = std::uint64_t{1} << 60, kFreely = std::uint64_t{1} << 20, kTimes = 4;
  std::uint64_t bytes_ = 0;
};

// The keys of one dict or set that is being filled. Those with equal hashes are compared with each other: n of them
// take n * n / 2 comparisons, and whoever chooses ints chooses their hashes. Small containers are not looked at.
class Collisions {
 public:
  explicit Collisions(std::uint64_t count) {
    if (count < kFewest) return;
    std::size_t slots = kFewest;
    while (slots * kPerSlot < count) slots *= 2;
    counts_.resize(slots);
    most_ = kFreely + kPerKey * count;
  }
  // Whether one more key of that hash may be added. -1 is allowed: the key has no hash, and adding it says so.
  bool allows(Py_hash_t hash) noexcept {
    compared_ += counts_[mixed(static_cast<std::uint64_t>(hash)) & (counts_.size() - 1)]++;
    return compared_ <= most_;
  }
  bool is_counting() const noexcept { return !counts_.empty(); }

 private:
  // All bits count: the hashes of ints are the ints.
  static constexpr std::uint64_t mixed(std::uint64_t hash) noexcept {
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111ebu;
    return hash ^ hash >> 31;
  }

  static constexpr std::uint64_t kFewest = 128, kPerSlot = 16;
  // Comparisons: as many as a small container may take, and a few for each key.
  static constexpr std::uint64_t kFreely = 65'536, kPerKey = 64;

  std::vector<std::uint32_t> counts_;  // by hash; a power of two of them
  std::uint64_t compared_ = 0, most_ = 0;
};

}  // namespace shmtree::python
