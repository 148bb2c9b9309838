// A subscription that no process has claimed: a block, held by every process that has the subscription. Forked
// children, and processes that are started with it, hold it too; a process that has exited does not. While it is in
// transit to a running process (memory/transfers.h), it counts as held by its giver.
//
// Thread safety: any thread.
#pragma once

#include "broadcast/ring.h"

namespace shmtree::broadcast {

// The content of the block of a subscription.
struct Ticket {
  BlockRef ring;
  std::uint32_t number = 0;
  Owner owner{};
};

// Allocates the block of a new subscription. Returns kOutOfSharedMemory if there is no memory for it now. Does not wait
// for memory, since the processes that use up the memory may be waiting for this reader. Returns kTimeout if a stopped
// process has the ring's lock or the arena's.
Result<memory::Lease> new_subscription(const Ring& ring, const WaitContext& wait);
// Writes a ticket to a block that no other process knows yet.
void write_ticket(const memory::Lease& subscription, const Ticket& ticket) noexcept;
// Reads the ticket in a block. kIncompatible for a block of another kind, kInvalid if the ticket names no cursor.
Result<Ticket> read_ticket(const memory::Lease& subscription);

}  // namespace shmtree::broadcast
