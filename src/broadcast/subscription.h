// A subscription that no process has claimed: a block which every process holds that has it, and so also forked
// children and those that are started with it. A process that has exited holds nothing. While it is in transit to a
// process that runs already (memory/transfers.h), it counts as held by its giver.
//
// Thread safety: any thread.
#pragma once

#include "broadcast/ring.h"

namespace shmtree::broadcast {

// What is written in such a block.
struct Ticket {
  BlockRef ring;
  std::uint32_t number = 0;
  Owner owner{};
};

// A block for a new one. kOutOfSharedMemory when there is no memory for it now: does not block, since the processes
// that hold the memory may be waiting for this reader. kTimeout: a stopped process has the ring's lock or the arena's.
Result<memory::Lease> new_subscription(const Ring& ring, const WaitContext& wait);
// By its holder, before anybody else knows it.
void write_ticket(const memory::Lease& subscription, const Ticket& ticket) noexcept;
// kIncompatible for another block, kInvalid for a ticket of no cursor.
Result<Ticket> read_ticket(const memory::Lease& subscription);

}  // namespace shmtree::broadcast
