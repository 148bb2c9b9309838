// A chain of blocks, each with elements behind its header. A block is put before the chain, and stays in it, so walks
// need no lock.
#pragma once

#include "memory/block_table.h"
#include "platform/atomics.h"

namespace shmtree::memory {

// Each block has as many elements as all after it together, so a longer chain than this is a damaged one.
constexpr int kMostChained = 40;

enum class Walked { kAll, kStopped, kDamaged, kUnmapped };  // kUnmapped: this process has no address space for some

// Calls visit(block, elements, count) for each block of the chain until it returns false.
template <class Visit>
Walked walk_chain(const BlockTable& blocks, std::uint64_t packed, std::uint64_t element_bytes, Visit visit) noexcept {
  for (int links = 0; packed != 0; ++links) {
    const BlockRef ref = unpack(packed);
    if (links == kMostChained) return Walked::kDamaged;
    if (!blocks.is_current(ref)) return blocks.is_unmapped(ref) ? Walked::kUnmapped : Walked::kDamaged;
    auto* header = reinterpret_cast<ChainHeader*>(blocks.address(ref.id));
    if (header == nullptr) return Walked::kUnmapped;
    const std::uint64_t room = blocks.room_of(ref.id), count = platform::load_once(header->count);
    if (room < sizeof(ChainHeader) || count > (room - sizeof(ChainHeader)) / element_bytes) return Walked::kDamaged;
    if (!visit(ref, reinterpret_cast<std::byte*>(header + 1), count)) return Walked::kStopped;
    packed = platform::load_acquire(header->next);
  }
  return Walked::kAll;
}

}  // namespace shmtree::memory
