// A ring of a Broadcast or a Latest (src/broadcast/ring.cpp) without a file: each process has its own object, over
// words that all share. There are no cursors, so no reader delays a publisher.
#pragma once

#include "broadcast/cursors.cpp"
#include "broadcast/ring.cpp"
#include "no_waking.h"
#include "process.h"

namespace model {

using broadcast::Ring;

constexpr std::uint64_t kRingEntries = 2;  // the newest message, and the previous one until it is removed

struct SharedRing {
  broadcast::RingHeader header;
  alignas(64) std::uint64_t entries[kRingEntries * broadcast::kBroadcastUse.entry_bytes / 8];
  ListEntry list[kRingEntries];
};
inline constinit SharedRing shared_ring{};
inline constinit Raw<Ring> rings[kProcesses]{};

// Call it after set_up(slot).
inline Ring& set_up_ring(std::uint32_t slot, const broadcast::RingUse& use) {
  shared_ring.header.entries = kRingEntries;
  shared_ring.header.capacity = 1;
  shared_ring.header.history = 1;
  Lease control;
  control.data_ = reinterpret_cast<std::byte*>(&shared_ring.header);
  Ring& ring = *rings[slot];
  new (&ring) Ring(shared_arena_of(slot), std::move(control), use);
  const_cast<std::byte*&>(ring.ring_) = reinterpret_cast<std::byte*>(shared_ring.entries);
  const_cast<ListEntry*&>(ring.list_) = shared_ring.list;
  return ring;
}

// Call them under the locks. They put a small message that contains its number (100 + ticket), or a block with 8 bytes.
inline void put_small(std::uint32_t slot) {
  Ring& ring = *rings[slot];
  const std::uint64_t number = 100 + ring.tail(), value[] = {number, number};
  broadcast::Outgoing message;
  message.frame = {reinterpret_cast<const std::byte*>(value), sizeof value};
  ring.write(message, sizeof value, sizeof value, Ring::Locks::kRing);
}
inline void put_block(std::uint32_t slot, BlockRef block) {
  broadcast::Outgoing message;
  message.held.ref_ = block;
  message.held.arena_ = shared_arena_of(slot);
  rings[slot]->write(message, 8, 8, Ring::Locks::kArenaAndRing);
}
template <std::uint32_t slot>
void put_small_locked() {
  Ring& ring = *rings[slot];
  const auto locks = ring.lock_and_repair(Ring::Locks::kRing, {});
  put_small(slot);
  ring.unlock(*locks);
}

}  // namespace model

namespace shmtree::platform {

void copy_racing(void* out, const void* in, std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes / 8; ++i)
    store_once(static_cast<std::uint64_t*>(out)[i], load_once(static_cast<const std::uint64_t*>(in)[i]));
}

}  // namespace shmtree::platform

namespace shmtree::memory {

void Allocator::set_shrinker(Shrinker) noexcept {}

Status Reconciler::lock(std::atomic<std::uint32_t>& word, const platform::WaitContext&) {
  model::assume(RobustLock(word, parts_.participants).try_lock());
  return success();
}
bool Reconciler::lock_briefly(std::atomic<std::uint32_t>& word) noexcept {
  model::assume(RobustLock(word, parts_.participants).try_lock());
  return true;
}

}  // namespace shmtree::memory
