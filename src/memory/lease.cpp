// Holding blocks and letting them go. Letting go never blocks: garbage collectors do it anywhere.
//
// Invariant: a live block is freed only under the arena lock, and only if no holder bit is set, nothing refers to it
// and no delivery record keeps it. Whoever makes one of these stop being true afterwards calls collect(); if the lock
// is taken then, the free is deferred: the block goes on a list that the owner of the lock looks at once more after
// unlocking.
#include <algorithm>
#include <mutex>
#include <utility>

#include "memory/arena.h"
#include "memory/event.h"
#include "platform/atomics.h"

namespace shmtree::memory {

using namespace platform;

namespace {

Error no_memory_for_hold() {
  return Error{Code::kOutOfSharedMemory, "this process has no memory to note that it holds a block"};
}

}  // namespace

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    reset();
    arena_ = std::move(other.arena_);
    ref_ = other.ref_;
    data_ = other.data_;
    bytes_ = other.bytes_;
    fork_epoch_ = other.fork_epoch_;
  }
  return *this;
}

void Lease::reset() noexcept {
  const std::shared_ptr<Arena> arena = std::move(arena_);
  arena_.reset();
  // In a child that inherited the object but not the hold there is nothing to end.
  if (arena == nullptr || arena->fork_epoch_.load(std::memory_order_relaxed) != fork_epoch_) return;
  arena->end_hold(ref_, &HoldTable::Hold::leases);
}

// One lease, or one hold that became none, less. The last one of the process clears its bit: inside the mutex, since
// another thread that begins to hold the block must not lose the bit it has just set.
void Arena::end_hold(BlockRef ref, std::uint32_t HoldTable::Hold::*what) noexcept {
  const Identity me = current_identity();
  if (me == kNobody) return;
  {
    const std::lock_guard guard(holds_mutex_);
    HoldTable::Hold* hold = holds_.find(ref.id);
    // Absent in a child that inherited the object alone: its bit is not ours to clear.
    if (hold == nullptr || hold->generation != ref.generation || hold->*what == 0) return;
    --(hold->*what);
    if (hold->leases + hold->in_flight != 0) return;
    holds_.erase(hold);
    if (BlockEntry* block = entry(ref.id)) block->holders.remove(slot_of(me));
  }
  collect(ref);
}

// For a hold that holds_ counts as a lease already.
Result<Lease> Arena::make_lease(BlockRef ref) {
  Lease lease;
  lease.arena_ = shared_from_this();
  lease.ref_ = ref;
  lease.fork_epoch_ = fork_epoch_.load(std::memory_order_relaxed);
  lease.data_ = address(ref.id);
  lease.bytes_ = std::min(load_relaxed(entry(ref.id)->size), std::uint64_t{1} << ref.id.size_class());
  if (lease.data_ == nullptr) return Error{Code::kOutOfSharedMemory, "no address space left to map a block"};
  return lease;
}

bool Arena::begin_hold(BlockRef ref, Identity me) noexcept {
  if (entry(ref.id) == nullptr) return false;
  {
    const std::lock_guard guard(holds_mutex_);
    HoldTable::Hold* hold = holds_.add(ref.id);
    if (hold == nullptr) return false;
    hold->generation = ref.generation;
    ++hold->in_flight;
  }
  hold_for(ref, me);
  return true;
}

void Arena::hold_for(BlockRef ref, Identity child) noexcept {
  BlockEntry* block = entry(ref.id);
  if (block == nullptr) return;
  block->holders.add(slot_of(child));
  store_relaxed(block->since_ns, coarse_monotonic_ns());
  count_held(*block);
}

Result<Lease> Arena::lease_begun(BlockRef ref, std::uint32_t fewer_begun) {
  {
    const std::lock_guard guard(holds_mutex_);
    HoldTable::Hold* hold = holds_.find(ref.id);
    if (hold == nullptr || hold->in_flight == 0) return Error{Code::kInvalid, "a hold that was not begun"};
    hold->in_flight -= fewer_begun;
    ++hold->leases;
  }
  return make_lease(ref);
}

void Arena::drop_hold(BlockRef ref) noexcept {
  end_hold(ref, &HoldTable::Hold::in_flight);
}

Result<Lease> Arena::hold_new(OwnedBlock block) {
  auto me = identity();
  if (!me) return std::move(me).error();
  if (!begin_hold(block.ref(), *me)) return no_memory_for_hold();
  const BlockRef ref = block.ref();
  published(block);
  return adopt_hold(ref);
}

Result<Lease> Arena::hold_existing(BlockRef ref, const WaitContext& wait) {
  auto me = identity();
  if (!me) return std::move(me).error();
  // Under the arena lock nobody can free the block between the look and the bit.
  Status locked = lock_blocks(wait);
  if (!locked) return std::move(locked).error();
  const BlockEntry* block = is_current(ref) ? entry(ref.id) : nullptr;
  const bool live = block != nullptr && state_of(load_acquire(block->word)) == BlockState::kLive;
  const bool held = live && begin_hold(ref, *me);
  unlock_blocks();
  if (!live) return Error{Code::kNotFound, "the block that a handle names is gone: everyone let go of it"};
  if (!held) return no_memory_for_hold();
  return adopt_hold(ref);
}

// held_bytes changes here without a lock. Flag first, then the sum; if reconcile() began a new count in between, the
// flag's epoch says whether it has counted this block already.
void Arena::count_held(BlockEntry& block) noexcept {
  std::uint64_t held = load_acquire(header().held_bytes);
  std::uint32_t flags = load_relaxed(block.flags), counted;
  do {
    if ((flags & kCountedHeld) != 0) return;
    counted = counted_in(flags, held_epoch(held));
  } while (!compare_swap(block.flags, flags, counted));
  const std::uint64_t bytes = load_relaxed(block.committed);
  while (!compare_swap(header().held_bytes, held, held + bytes)) {
    const std::uint32_t old = counted >> 16;
    if (held_epoch(held) == old) continue;
    flags = load_acquire(block.flags);
    do {
      if (flags >> 16 != old) return;
      counted = counted_in(flags, held_epoch(held));
    } while (!compare_swap(block.flags, flags, counted));
  }
}

// Under the arena lock, of a block that nobody holds.
void Arena::uncount_held(BlockEntry& block, std::uint64_t committed) noexcept {
  const std::uint32_t flags = load_relaxed(block.flags);
  std::uint64_t held = load_acquire(header().held_bytes);
  do {
    if ((flags & kCountedHeld) == 0 || flags >> 16 != held_epoch(held)) return;
  } while (!compare_swap(header().held_bytes, held, held - std::min(committed, held & kHeldMask)));
}

void Arena::set_delivered(BlockRef ref, bool delivered) noexcept {
  BlockEntry* block = entry(ref.id);
  if (block == nullptr) return;
  if (delivered) {
    set_bits(block->flags, std::uint32_t{kDelivered});
  } else {
    clear_bits(block->flags, std::uint32_t{kDelivered});
  }
}

bool Arena::try_set_delivered(BlockRef ref) noexcept {
  if (!try_lock(header().arena_lock)) return false;
  set_delivered(ref, true);
  unlock_blocks();
  return true;
}

// Under the arena lock, so that a holder that died, and the message that it received, are counted away first. Receivers
// set their bit before the message goes, which is why its references are looked at before the bits.
Result<bool> Arena::is_shared(BlockRef ref, const WaitContext& wait) {
  auto me = identity();
  if (!me) return std::move(me).error();
  Status locked = lock_blocks(wait);
  if (!locked) return std::move(locked).error();
  bool shared = false;
  if (const BlockEntry* block = is_current(ref) ? entry(ref.id) : nullptr) {
    shared = load_acquire(block->refcount) != 0 || (load_acquire(block->flags) & kDelivered) != 0;
    for (std::uint32_t i = 0; i < kParticipantWords; ++i) {
      const std::uint64_t mine = i == slot_of(*me) / 64 ? ParticipantSet::bit_of(slot_of(*me)) : 0;
      shared = shared || (load_full(block->holders.words[i]) & ~mine) != 0;
    }
  }
  unlock_blocks();
  return shared;
}

bool Arena::is_referenced(const BlockEntry& block) const noexcept {
  if (load_acquire(block.refcount) != 0 || (load_acquire(block.flags) & kDelivered) != 0) return true;
  const std::uint32_t words = (std::min(load_acquire(header().participants_high), kMaxParticipants) + 63) / 64;
  for (std::uint32_t i = 0; i < words; ++i) {
    if (load_full(block.holders.words[i]) != 0) return true;
  }
  return false;
}

// Not while derived state is wrong: a reference count of 0 means nothing then.
bool Arena::try_lock_blocks() noexcept {
  if (!try_lock(header().arena_lock)) return false;
  if (!dirty()) return true;
  unlock(header().arena_lock);
  return false;
}

void Arena::collect(BlockRef ref) noexcept {
  BlockEntry* block = entry(ref.id);
  if (block == nullptr || current_identity() == kNobody) return;
  if (is_referenced(*block)) return;  // whoever keeps it sees to it when they let go
  if (try_lock_blocks()) {
    free_if_unreferenced(ref);
    unlock_blocks();
  } else if (defer_free(ref) && try_lock_blocks()) {
    unlock_blocks();  // runs what was deferred
  }
  trim_excess();
}

// False when the list is full: the block is then found by a reconcile, which is asked for.
bool Arena::defer_free(BlockRef ref) noexcept {
  Participant& mine = participant(slot_of(current_identity()));
  const std::uint64_t packed = pack(ref);
  for (std::uint32_t i = 0; i < kDeferredFrees; ++i) {
    std::atomic<std::uint64_t>& place = mine.deferred_frees[(ref.id.index() + i) % kDeferredFrees];
    std::uint64_t empty = 0;
    if (load_relaxed(place) == 0 && compare_swap(place, empty, packed)) {
      store_full(header().deferred_hint, 1u);
      full_fence();
      return true;
    }
  }
  store_relaxed(mine.deferred_overflow, 1u);
  mark_dirty();
  return false;
}

void Arena::unlock_blocks() noexcept {
  // Whoever posts either finds the lock free or is seen here: both sides have a full fence between store and look.
  for (;;) {
    if (load_full(header().deferred_hint) != 0) run_deferred_frees();
    const bool freed = load_relaxed(header().freed) != 0;
    if (freed) store_relaxed(header().freed, 0u);
    unlock(header().arena_lock);
    // Only if there is something to see: a waiter that looks in vain must not wake itself.
    if (freed) notify_all(header().space);
    if (load_full(header().deferred_hint) == 0 || !try_lock_blocks()) return;
  }
}

void Arena::run_deferred_frees() noexcept {
  exchange_full(header().deferred_hint, 0u);  // sees what was posted before any hint that it takes back
  const std::uint32_t high = std::min(load_acquire(header().participants_high), kMaxParticipants);
  for (std::uint32_t slot = 0; slot < high; ++slot) {
    for (auto& place : participant(slot).deferred_frees) {
      if (load_relaxed(place) == 0) continue;
      const std::uint64_t packed = exchange_full(place, std::uint64_t{0});
      if (packed != 0) free_if_unreferenced(unpack(packed));
    }
  }
}

// Under the arena lock: frees the block if nothing keeps it, then those that only it referred to.
void Arena::free_if_unreferenced(BlockRef ref) noexcept {
  BlockEntry* block = entry(ref.id);
  if (block == nullptr || load_acquire(block->word) != block_word(BlockState::kLive, kNobody, ref.generation)) return;
  if (is_referenced(*block)) return;
  if (load_relaxed(block->kind) == static_cast<std::uint32_t>(BlockKind::kChannel)) {
    add(header().garbage, 1u);  // what the channel keeps is found by reconcile, in one walk for all such channels
    return;
  }
  // Blocks to look at next are chained through `next_free`, since nothing may be allocated here. `count` ends the walk
  // whatever others write into the chain.
  std::uint64_t count = 0;
  std::uint64_t orphans = drop_references(ref.id, *block, 0, count);
  free_block(ref.id, *block);
  for (; count != 0; --count) {
    const BlockRef next = unpack(orphans);
    BlockEntry* orphan = entry(next.id);
    if (orphan == nullptr) return;
    orphans = load_relaxed(orphan->next_free);
    if (load_acquire(orphan->word) != block_word(BlockState::kLive, kNobody, next.generation) || is_referenced(*orphan))
      continue;
    orphans = drop_references(next.id, *orphan, orphans, count);
    free_block(next.id, *orphan);
  }
}

std::uint64_t Arena::room_of(BlockId id) noexcept {
  const BlockEntry* block = entry(id);
  return block == nullptr ? 0 : committed_of(*block, id.size_class());
}

// Returns the chain of those that are not referred to any more, put before `orphans`, and adds their number to `count`.
std::uint64_t Arena::drop_references(BlockId id, BlockEntry& block, std::uint64_t orphans,
                                     std::uint64_t& count) noexcept {
  for (const ListEntry& item : references_of(id, block)) {
    const BlockRef ref = ref_of(item);
    BlockEntry* target = is_current(ref) ? entry(ref.id) : nullptr;
    if (target == nullptr || target == &block || load_relaxed(target->refcount) == 0) continue;
    if (subtract(target->refcount, 1u) != 1) continue;
    store_relaxed(target->next_free, orphans);
    orphans = pack(ref);
    ++count;
  }
  store_relaxed(block.list_length, 0u);
  return orphans;
}

// Under the arena lock. The word last of what a kill may separate: until then it is a block in use.
void Arena::free_block(BlockId id, BlockEntry& block) noexcept {
  std::uint64_t committed = committed_of(block, id.size_class());
  const std::uint64_t used = load_relaxed(header().used_bytes);
  uncount_held(block, committed);
  note_usage(used - std::min(used, committed));
  if ((load_relaxed(block.flags) & kTrimmed) != 0) {
    const std::uint64_t keep = std::min(load_relaxed(block.size), committed);
    store_relaxed(header().committed_bytes, load_relaxed(header().committed_bytes) - (committed - keep));
    store_relaxed(block.committed, keep);
    committed = keep;
  }
  store_relaxed(block.flags, 0u);
  store_release(block.word, block_word(BlockState::kFree, kNobody, generation_of_block(load_relaxed(block.word))));
  ClassState& state = header().classes[id.size_class() - kMinClass];
  std::atomic<std::uint64_t>& list = committed != 0 ? state.warm : state.cold;
  store_relaxed(block.next_free, load_relaxed(list));
  store_relaxed(list, id.index() + 1);
  store_relaxed(header().frees, load_relaxed(header().frees) + 1);
  store_relaxed(state.last_freed, load_relaxed(header().frees));
  store_relaxed(header().freed, 1u);
}

}  // namespace shmtree::memory
