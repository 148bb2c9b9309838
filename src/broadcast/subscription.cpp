#include "broadcast/subscription.h"

#include <mutex>
#include <new>
#include <utility>

#include "memory/control_block.h"
#include "platform/never_destroyed.h"

namespace shmtree::broadcast {

using namespace platform;
using memory::BlockKind;
using memory::Lease;

namespace {

// Whether the cursor is still that of this subscription, and nobody's who reads.
bool is_unclaimed(const Lease& subscription, const Cursor& cursor) noexcept {
  const Owner owner = unpack_owner(load_acquire(cursor.owner));
  return owner.identity != memory::kNobody && !owner.claimed &&
         load_acquire(cursor.subscription) == memory::pack(subscription.ref());
}

struct Kept {
  std::shared_ptr<Lease> subscription;
  const Cursor* cursor;
};
struct AllKept {
  ForkSafeMutex mutex;
  std::vector<Kept> subscriptions;
};
AllKept& kept() noexcept {
  return never_destroyed<AllKept>();
}
[[maybe_unused]] const bool kKeptMade = (kept(), true);  // before a fork handler could ask for it

}  // namespace

Result<Lease> new_subscription(const Ring& ring, const WaitContext& wait) {
  Arena& arena = *ring.arena();
  constexpr std::uint64_t kBytes = sizeof(Subscription) + sizeof(memory::ListEntry);
  auto block = arena.allocate(kBytes, BlockKind::kSubscription, {Deadline::immediate(), wait.hooks});
  // Who was stopped with the arena's lock is waited for, which each try does a little.
  while (!block && block.code() == Code::kTimeout && !wait.deadline.passed()) {
    block = arena.allocate(kBytes, BlockKind::kSubscription, {Deadline::immediate(), wait.hooks});
  }
  if (!block) {
    Error error = std::move(block).error();
    if (error.code == Code::kTimeout || error.code == Code::kInterrupted) return error;
    error.message = "there is no memory to note one more subscription: " + error.message;
    if (error.code == Code::kFull) error.code = Code::kOutOfSharedMemory;
    return error;
  }
  new (block->data()) Subscription{memory::pack(ring.block()), 0, 0, 0};
  const BlockRef referred[] = {ring.block()};
  return hold_control_block(arena, std::move(*block), referred, wait);
}

void write_ticket(const Lease& subscription, const Ticket& ticket) noexcept {
  auto& written = *reinterpret_cast<Subscription*>(subscription.data());
  written.owner = pack(ticket.owner);
  written.number = ticket.number;
}

Result<Ticket> read_ticket(const Lease& subscription) {
  const memory::BlockTable& blocks = subscription.arena()->blocks();
  const memory::BlockEntry* entry = blocks.entry(subscription.ref().id);
  if (entry == nullptr || !memory::is_kind(*entry, BlockKind::kSubscription) ||
      blocks.room_of(subscription.ref().id) < sizeof(Subscription)) {
    return Error{.code = Code::kIncompatible, .message = "not a subscription to a Broadcast"};
  }
  const auto& written = *reinterpret_cast<const Subscription*>(subscription.data());
  Ticket ticket{.ring = memory::unpack(load_once(written.ring)),
                .number = load_once(written.number),
                .owner = unpack_owner(load_once(written.owner))};
  const Policy policy = ticket.owner.policy;
  if (ticket.number < kMostCursors && policy >= Policy::kBlock && policy <= Policy::kRaise) return ticket;
  return Error{.code = Code::kInvalid, .message = "there is no such subscription"};
}

void KeptForTakers::add(Lease subscription, const Cursor& cursor) noexcept {
  if (!subscription.valid() || !is_unclaimed(subscription, cursor)) return;
  try {
    auto lease = std::make_shared<Lease>(std::move(subscription));
    const std::lock_guard guard(kept().mutex);
    kept().subscriptions.push_back({std::move(lease), &cursor});
  } catch (const std::bad_alloc&) {  // then it is dropped
  }
}

void KeptForTakers::sweep() noexcept {
  try {
    std::vector<Kept> all;  // looked at, and let go of, without the mutex
    {
      const std::lock_guard guard(kept().mutex);
      all = kept().subscriptions;
    }
    for (const Kept& each : all) {
      if (is_unclaimed(*each.subscription, *each.cursor)) continue;
      const std::lock_guard guard(kept().mutex);
      std::erase_if(kept().subscriptions, [&](const Kept& other) { return other.subscription == each.subscription; });
    }
  } catch (const std::bad_alloc&) {  // the next one does it
  }
}

}  // namespace shmtree::broadcast
