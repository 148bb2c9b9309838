// A subscription that nobody has claimed: a block which every process holds that has it, and so also forked children
// and those that are started with it. A process that has exited holds nothing. While it is in transit to a process that
// runs already, the grants by which it is count as well, until they are claimed.
//
// Thread safety: any thread.
#pragma once

#include "broadcast/ring.h"
#include "memory/given_memory.h"

namespace shmtree::broadcast {

// What is written in such a block.
struct Ticket {
  BlockRef ring;
  std::uint32_t number = 0;
  Owner owner{};
};

// A block for a new one. kOutOfSharedMemory when there is no memory for it now: does not block, since the processes
// that hold the memory may be waiting for this reader. kTimeout: a stopped process kept the arena's lock.
Result<memory::Lease> new_subscription(const Ring& ring, const WaitContext& wait);
// By its holder, before anybody else knows it.
void write_ticket(const memory::Lease& subscription, const Ticket& ticket) noexcept;
// kIncompatible for another block, kInvalid for a ticket of no cursor.
Result<Ticket> read_ticket(const memory::Lease& subscription);

// Records a grant by which it is in transit. A grant beyond kMostGiven replaces the oldest.
void add_grant(const memory::Lease& subscription, std::uint64_t grant) noexcept;
// Calls visit(grant, giver) for those that are open. For any number: nothing is held.
template <class Visit>
void for_each_grant(Arena& arena, BlockRef subscription, Visit visit) {
  const memory::BlockEntry* entry =
      arena.blocks().is_current(subscription) ? arena.blocks().entry(subscription.id) : nullptr;
  const std::byte* data = arena.blocks().address(subscription.id);
  if (entry == nullptr || data == nullptr || !memory::is_kind(*entry, memory::BlockKind::kSubscription) ||
      arena.blocks().room_of(subscription.id) < sizeof(Subscription)) {
    return;
  }
  for (const auto& word : reinterpret_cast<const Subscription*>(data)->given) {
    const std::uint64_t grant = platform::load_acquire(word);
    const Identity giver = memory::giver_of(arena, grant);
    if (giver != memory::kNobody && arena.blocks().is_current(subscription)) visit(grant, giver);
  }
}

}  // namespace shmtree::broadcast
