// A subscription that nobody has claimed: a block which every process holds that has it, and so also forked children
// and those that are started with it. Who is gone holds nothing.
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

// A block for a new one. kOutOfSharedMemory when there is no memory for it now: nobody is waited for, since those whom
// the memory is full of may be waiting for just this reader. kTimeout: a stopped process kept the arena's lock.
Result<memory::Lease> new_subscription(const Ring& ring, const WaitContext& wait);
// By its holder, before anybody else knows it.
void write_ticket(const memory::Lease& subscription, const Ticket& ticket) noexcept;
// kIncompatible for another block, kInvalid for a ticket of no cursor.
Result<Ticket> read_ticket(const memory::Lease& subscription);

// Subscriptions that this process has given away and dropped: it has them until somebody claims them, or it ends.
struct KeptForTakers {
  // `cursor` is there as long as the subscription is.
  static void add(memory::Lease subscription, const Cursor& cursor) noexcept;
  // Lets go of those that were claimed.
  static void sweep() noexcept;
};

}  // namespace shmtree::broadcast
