// Control blocks: the shared words of a channel, a Latest, a Broadcast, a subscription or a replay buffer. Each process
// that uses the object holds its control block.
//
// Layout: a header, the words of the object, and, unless it is a channel, the list of the blocks to which the control
// block refers. Those blocks live as long as the control block does.
#pragma once

#include <cstdint>
#include <span>

#include "memory/arena.h"
#include "memory/held_locks.h"
#include "platform/dcheck.h"

namespace shmtree::memory {

// Allocates a block of zeros. No other process knows it until hold_control_block() has pinned it.
Result<OwnedBlock> make_control_block(Arena& arena, BlockKind kind, std::uint64_t bytes,
                                      const platform::WaitContext& wait);
// Pins the block. Its list of references begins with `references`, and has space for `most` of them if that is more
// (HolderTable::refer()).
Result<Lease> hold_control_block(Arena& arena, OwnedBlock block, std::span<const BlockRef> references,
                                 const platform::WaitContext& wait, std::uint64_t most = 0);
// Pins the block that `ref` names. Returns kIncompatible if the block is of another kind or has fewer than `least`
// bytes. `what` names the expected object in the message, such as "a Latest".
Result<Lease> open_control_block(Arena& arena, BlockRef ref, BlockKind kind, std::uint64_t least, const char* what,
                                 const platform::WaitContext& wait);

// The list of references of a control block. Its entries are filled and emptied one by one. An empty entry has the id
// 0, which names no block.
//
// Invariant: if a process is killed while it changes an entry, the entry names the old block, the new one, or none. The
// id is stored last, and an entry without an id names no block.
//
// Thread safety: under the arena lock.
class ReferenceList {
 public:
  // `list` is the list that HolderTable::refer() stored. It already has its final length.
  ReferenceList(Arena& arena, ListEntry* list) noexcept : arena_(arena), list_(list) {}

  BlockRef at(std::uint64_t index) const noexcept { return ref_of(list_[index]); }
  // Fills an empty entry. The caller holds the block.
  void fill(std::uint64_t index, BlockRef block) noexcept {
    SHMTREE_DCHECK(HeldLocks::contains(arena_.header().arena_lock));
    platform::store_once(list_[index].generation, std::uint64_t{block.generation});
    platform::store_once(list_[index].id, block.id.value);
    platform::add(arena_.blocks().entry(block.id)->refcount, 1u);
  }
  // Empties an entry. Returns the block that the entry named, or an invalid BlockRef. The caller frees that block if
  // nothing else keeps it.
  BlockRef empty(std::uint64_t index) noexcept {
    const BlockRef block = at(index);
    if (block.id.value != 0) platform::store_once(list_[index].id, std::uint64_t{0});
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
