// The block of control words of what several processes use together: a Latest, a Broadcast, a replay buffer.
//
// Layout: a header of its kind, words of its kind, and at last the list of the blocks that it refers to, which live as
// long as it does. Whoever uses it holds it.
#pragma once

#include <cstdint>
#include <span>

#include "memory/arena.h"

namespace shmtree::memory {

// Of zeros, and known to nobody before it is held.
Result<OwnedBlock> make_control_block(Arena& arena, BlockKind kind, std::uint64_t bytes,
                                      const platform::WaitContext& wait);
// The list begins with `references` and has room for `most`, if that is more: HolderTable::refer().
Result<Lease> hold_control_block(Arena& arena, OwnedBlock block, std::span<const BlockRef> references,
                                 const platform::WaitContext& wait, std::uint64_t most = 0);
// Code::kIncompatible with "not `what`" unless it is of that kind and has room for `least` bytes.
Result<Lease> open_control_block(Arena& arena, BlockRef ref, BlockKind kind, std::uint64_t least, const char* what,
                                 const platform::WaitContext& wait);

// The list of references of a control block, as places that are filled and emptied one by one. An empty place is of
// zeros, which name no block.
//
// Invariant: whatever the last one to change a place was killed at, the place names the block before, the one after, or
// none: an entry names no block until its id is stored, which comes last.
//
// Thread safety: under the arena lock.
class ReferencePlaces {
 public:
  // `list` is that of HolderTable::refer(), as long as it will ever be.
  ReferencePlaces(Arena& arena, ListEntry* list) noexcept : arena_(arena), list_(list) {}

  BlockRef at(std::uint64_t place) const noexcept { return ref_of(list_[place]); }
  // Of an empty place; the caller holds the block.
  void fill(std::uint64_t place, BlockRef block) noexcept {
    platform::store_once(list_[place].generation, std::uint64_t{block.generation});
    platform::store_once(list_[place].id, block.id.value);
    platform::add(arena_.blocks().entry(block.id)->refcount, 1u);
  }
  // What this place kept and nothing may keep any more, to be collected; an invalid reference for nothing.
  BlockRef empty(std::uint64_t place) noexcept {
    const BlockRef block = at(place);
    if (block.id.value != 0) platform::store_once(list_[place].id, std::uint64_t{0});
    BlockEntry* entry = arena_.blocks().is_current(block) ? arena_.blocks().entry(block.id) : nullptr;
    if (entry == nullptr) return BlockRef{};
    if (platform::load_relaxed(entry->refcount) != 0) platform::subtract(entry->refcount, 1u);
    return block;
  }

 private:
  Arena& arena_;
  ListEntry* list_;
};

}  // namespace shmtree::memory
