// What a process does with transfers (transfer_table.h): it begins one when it makes a handle, and ends one when it has
// loaded a handle.
//
// The giver stays in the arena until what it handed over has arrived, since receivers find the arena's file through it.
// It looks for ended transfers when it begins, ends or closes something; if there are more than a few, each time that
// their number has doubled.
//
// A forked child has handed over nothing. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "memory/arena.h"

namespace shmtree::memory {

// Begins the transfer of a block that the caller holds (packed; 0 for the arena as such), and returns its number.
// kOutOfSharedMemory if there is no memory to note it. Does not block: the processes that hold the memory may be
// waiting for this handle.
Result<std::uint64_t> begin_transfer(const std::shared_ptr<Arena>& arena, std::uint64_t block, Transferred what);
// Ends a transfer, after the receiver has what was handed over, or because it was not sent. Does nothing for the number
// of no transfer, so a handle may be loaded twice; 0 is none.
void end_transfer(Arena& arena, std::uint64_t number) noexcept;
// Ends this process's transfers of that block of memory.
void end_own_transfers(Arena& arena, std::uint64_t block) noexcept;
// Leaves arenas in which nothing of this process's is in transit any more.
void sweep_transfers() noexcept;

}  // namespace shmtree::memory
