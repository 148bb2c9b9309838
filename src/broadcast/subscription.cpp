#include "broadcast/subscription.h"

#include <new>
#include <utility>

#include "memory/control_block.h"

namespace shmtree::broadcast {

using namespace platform;
using memory::BlockKind;
using memory::Lease;

Result<Lease> new_subscription(const Ring& ring, const WaitContext& wait) {
  Arena& arena = *ring.arena();
  constexpr std::uint64_t kBytes = sizeof(Subscription) + sizeof(memory::ListEntry);
  auto block = arena.allocate(kBytes, BlockKind::kSubscription, {Deadline::immediate(), wait.hooks});
  // A stopped process may hold the arena's lock, so each attempt waits only a short time for the lock.
  while (!block && block.code() == Code::kTimeout && !wait.deadline.passed()) {
    block = arena.allocate(kBytes, BlockKind::kSubscription, {Deadline::immediate(), wait.hooks});
  }
  if (!block) {
    Error error = std::move(block).error();
    if (error.code == Code::kTimeout || error.code == Code::kInterrupted) return error;
    error.message = "no shared memory to record another subscription: " + error.message;
    if (error.code == Code::kFull) error.code = Code::kOutOfSharedMemory;
    return error;
  }
  new (block->data()) Subscription{.ring = memory::pack(ring.block()), .owner = 0, .number = 0, .unused = 0};
  const BlockRef referred[] = {ring.block()};
  return hold_control_block(arena, std::move(*block), referred, wait);
}

void write_ticket(const Lease& subscription, const Ticket& ticket) noexcept {
  auto& written = *reinterpret_cast<Subscription*>(subscription.data());
  written.owner = pack(ticket.owner);
  written.number = ticket.number;
}

Result<Ticket> read_ticket(const Lease& subscription) {
  const auto& written = *reinterpret_cast<const Subscription*>(subscription.data());
  Ticket ticket{.ring = memory::unpack(load_once(written.ring)),
                .number = load_once(written.number),
                .owner = unpack_owner(load_once(written.owner))};
  const Policy policy = ticket.owner.policy;
  if (ticket.number < kMaxCursors && policy >= Policy::kBlock && policy <= Policy::kRaise) return ticket;
  return Error{.code = Code::kInvalid, .message = "the shared state of this subscription is damaged"};
}

}  // namespace shmtree::broadcast
