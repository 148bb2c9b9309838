// ArenaHeader::held_bytes: the bytes of blocks that left a queue, or never enter one. It changes without a lock when a
// receiver first takes hold of a message, while a recovery may be counting anew.
//
// Invariant: a block in use whose flag carries the epoch of the sum is in the sum once, or its bytes are on their way
// into it. The sum's upper 16 bits are its epoch, the number of the count; the block's flags carry the one in which it
// was counted. So each of two sides, one that counts a block and one that begins a new count, can tell what the other
// has seen: whoever moves a block's flag to the new epoch is the one who adds its bytes.
#pragma once

#include "memory/layout.h"

namespace shmtree::memory {

class HeldBytes {
 public:
  explicit HeldBytes(ArenaHeader& header) noexcept : sum_(header.held_bytes) {}

  std::uint64_t bytes() const noexcept { return platform::load_acquire(sum_) & kHeldMask; }
  // Counts a block in use, if it is not.
  void count(BlockEntry& block) noexcept;
  // Under the arena lock: a block that nobody holds, and that had `committed` bytes, is about to be freed.
  void uncount(const BlockEntry& block, std::uint64_t committed) noexcept;

  // Under the arena lock, in this order: a new count, for each block in use the bytes that it adds to it, and the sum.
  std::uint32_t begin_recount() noexcept;
  static std::uint64_t recount(BlockEntry& block, std::uint32_t epoch) noexcept;
  void end_recount(std::uint64_t held) noexcept { platform::add(sum_, held); }

 private:
  std::atomic<std::uint64_t>& sum_;
};

}  // namespace shmtree::memory
