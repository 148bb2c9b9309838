// Begins and ends transfers (transfer_table.h): a process begins one when it makes a handle, and ends it when it has
// loaded the handle.
//
// The giver stays attached until what it handed over has arrived, because receivers open the arena's file through it.
// It checks for ended transfers when it begins or ends one, or closes an object. If there are more than a few, it
// checks each time that their number has doubled.
//
// A forked child has no transfers. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "memory/arena.h"

namespace shmtree::memory {

// Begins the transfer of a block that the caller holds (packed; 0 for the arena itself), and returns its number.
// kOutOfSharedMemory if there is no memory to note it. Does not block: the processes that hold the memory may be
// waiting for this handle.
Result<std::uint64_t> begin_transfer(const std::shared_ptr<Arena>& arena, std::uint64_t block, Transferred what);
// Ends a transfer of that block. Call it once the receiver has the object, or if the handle was not sent. Does nothing
// if no transfer of the block has that number. So a handle may be loaded twice, and a forged one ends no transfer of
// another object. 0 is never a number.
void end_transfer(Arena& arena, std::uint64_t block, std::uint64_t number) noexcept;
// Ends this process's transfers of that block of memory.
void end_own_transfers(Arena& arena, std::uint64_t block) noexcept;
// Call it after the handle was written to a block, and before any other process knows that block, which is in `home`.
// The transfer then ends when the block is freed. If `home` is another arena, this process ends it, in
// end_lost_transfers(), and stays attached to `home` until then.
void carry_transfer(Arena& arena, std::uint64_t number, Arena& home, BlockRef block) noexcept;
// Returns true if the block may carry transfers. A process that copies the handles out of it then keeps the block.
bool may_carry_transfers(Arena& arena, BlockRef block) noexcept;
// Ends transfers of this process that lost messages in other arenas carried. May run a recovery there, if necessary.
void end_lost_transfers() noexcept;
// Releases arenas that only transfers kept, all of which have ended.
void sweep_transfers() noexcept;

}  // namespace shmtree::memory
