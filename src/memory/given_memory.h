// Memory on its way to other processes: what a Latest, a Broadcast, a replay buffer or a shared array is, or a whole
// arena. (Ends of channels have grants of their own, which count for their streams: channel/grants.h.)
//
// What holds: from give_memory() until claim_memory(), the process that gave it keeps it, by a block in its arena that
// refers to it and that this process holds. Whoever receives it holds it before it claims the grant, by one store of
// that block's word. The giver looks at the words when it gives, receives or closes something, and lets go then; where
// there are more than a few, each time that they have doubled. So what never arrives is kept for as long as its giver
// lives; and what a giver had is gone with it, unless others have it.
//
// A forked child has given nothing. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "memory/arena.h"

namespace shmtree::memory {

// A block that the caller holds (packed; 0 for the arena as such) is on its way now, under the number that is returned.
// kOutOfSharedMemory when there is no memory to note it.
Result<std::uint64_t> give_memory(const std::shared_ptr<Arena>& arena, std::uint64_t block);
// Whether that grant is open, and its giver lives. For any number, without a lock.
bool is_given(Arena& arena, std::uint64_t grant) noexcept;
// The process that made it, if it is open.
Identity giver_of(Arena& arena, std::uint64_t grant) noexcept;
// It has arrived, or was not sent. A number that is none, or not any more, does nothing. 0 is none.
void claim_memory(Arena& arena, std::uint64_t grant) noexcept;
// Lets go of what has arrived.
void sweep_given_memory() noexcept;

}  // namespace shmtree::memory
