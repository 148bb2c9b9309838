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

}  // namespace shmtree::memory
