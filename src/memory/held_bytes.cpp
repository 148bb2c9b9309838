#include "memory/held_bytes.h"

#include <algorithm>

namespace shmtree::memory {

using namespace platform;

// Flag first, then the sum. If a new count began in between, the flag's epoch says whether it has counted this block
// already.
void HeldBytes::count(BlockEntry& block) noexcept {
  std::uint64_t held = load_acquire(sum_);
  std::uint32_t flags = load_relaxed(block.flags), counted;
  do {
    if ((flags & kCountedHeld) != 0) return;
    counted = counted_in(flags, held_epoch(held));
  } while (!compare_swap(block.flags, flags, counted));
  const std::uint64_t bytes = load_relaxed(block.committed);
  while (!compare_swap(sum_, held, held + bytes)) {
    const std::uint32_t old = counted >> 16;
    if (held_epoch(held) == old) continue;
    flags = load_acquire(block.flags);
    do {
      if (flags >> 16 != old) return;
      counted = counted_in(flags, held_epoch(held));
    } while (!compare_swap(block.flags, flags, counted));
  }
}

void HeldBytes::uncount(const BlockEntry& block, std::uint64_t committed) noexcept {
  const std::uint32_t flags = load_relaxed(block.flags);
  std::uint64_t held = load_acquire(sum_);
  do {
    if ((flags & kCountedHeld) == 0 || flags >> 16 != held_epoch(held)) return;
  } while (!compare_swap(sum_, held, held - std::min(committed, held & kHeldMask)));
}

std::uint32_t HeldBytes::begin_recount() noexcept {
  const std::uint32_t epoch = (held_epoch(load_acquire(sum_)) + 1) & 0xffff;
  exchange_seq_cst(sum_, std::uint64_t{epoch} << 48);
  return epoch;
}

// Those of one counted before, or of a kind that never enters a queue.
std::uint64_t HeldBytes::recount(BlockEntry& block, std::uint32_t epoch) noexcept {
  const bool never_queued = !is_kind(block, BlockKind::kMessage);
  std::uint32_t flags = load_acquire(block.flags);
  for (;;) {
    const bool counted = (flags & kCountedHeld) != 0;
    if ((!counted && !never_queued) || (counted && flags >> 16 == epoch)) return 0;
    if (compare_swap(block.flags, flags, counted_in(flags, epoch))) return load_relaxed(block.committed);
  }
}

}  // namespace shmtree::memory
