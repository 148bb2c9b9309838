// Limits what decoding one message may cost beyond its size. docs/security.md has the table of all kinds.
//
// A value is about as large as its part of the frame, with few exceptions: references (expansion.h), buffers that
// several nodes share, and keys with equal hashes. Their costs are counted, and a frame is refused if these costs are
// disproportionate to its size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// Counts the bytes that are copied out of a message. Encoders give each text its own buffer, so a genuine message
// hardly ever copies a buffer more than once.
class CopiedBytes {
 public:
  bool allows(std::uint64_t bytes, std::uint64_t message_bytes) noexcept {
    bytes_ = std::min(bytes_, kMax) + std::min(bytes, kMax);
    return bytes_ <= kFreely + kTimes * message_bytes;
  }

 private:
  static constexpr std::uint64_t kMax = std::uint64_t{1} << 60, kFreely = std::uint64_t{1} << 20, kTimes = 4;
  std::uint64_t bytes_ = 0;
};

// Counts key comparisons while one dict or set is filled. Adding n keys with equal hashes takes n * n / 2 comparisons.
// A sender can choose such keys, since the hash of an int is its value. Small containers are not checked.
class Collisions {
 public:
  explicit Collisions(std::uint64_t count) {
    if (count < kMin) return;
    std::size_t slots = kMin;
    while (slots * kPerSlot < count) slots *= 2;
    counts_.resize(slots);
    most_ = kFreely + kPerKey * count;
  }
  // Returns true if another key with that hash may be added. -1 means that the key has no hash; adding it will raise.
  bool allows(Py_hash_t hash) noexcept {
    compared_ += counts_[mixed(static_cast<std::uint64_t>(hash)) & (counts_.size() - 1)]++;
    return compared_ <= most_;
  }
  bool is_counting() const noexcept { return !counts_.empty(); }

 private:
  // Mixes all bits, since the hash of an int is the int itself.
  static constexpr std::uint64_t mixed(std::uint64_t hash) noexcept {
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111ebu;
    return hash ^ hash >> 31;
  }

  static constexpr std::uint64_t kMin = 128, kPerSlot = 16;
  // Allowed comparisons: the number that a small container may need, plus a few for each key.
  static constexpr std::uint64_t kFreely = 65'536, kPerKey = 64;

  std::vector<std::uint32_t> counts_;  // number of keys by mixed hash; the size is a power of two
  std::uint64_t compared_ = 0, most_ = 0;
};

}  // namespace shmtree::python
