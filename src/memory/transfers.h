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
// if no transfer of the block has that number, so a handle may be loaded twice, and a forged one ends no other object's
// transfer. 0 is never a number.
void end_transfer(Arena& arena, std::uint64_t block, std::uint64_t number) noexcept;
// Ends this process's transfers of that block of memory.
void end_own_transfers(Arena& arena, std::uint64_t block) noexcept;
// Releases arenas that only transfers kept, all of which have ended.
void sweep_transfers() noexcept;

}  // namespace shmtree::memory
