#include "memory/holder_table.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "platform/clock.h"
#include "platform/dcheck.h"

namespace shmtree::memory {

using namespace platform;

namespace {

Error no_memory_for_hold() {
  return Error{Code::kOutOfSharedMemory, "out of memory: this process cannot record that it holds a block"};
}

}  // namespace

bool HolderTable::begin(BlockRef ref, Identity me) noexcept {
  SHMTREE_DCHECK(me != kNoIdentity);
  if (parts_.table.entry(ref.id) == nullptr) return false;
  {
    const std::lock_guard guard(mutex_);
    HoldCounts::Hold* hold = counts_.add(ref.id);
    if (hold == nullptr) return false;
    hold->generation = ref.generation;
    ++hold->in_flight;
  }
  hold_for(ref, me);
  return true;
}

// A Dekker handshake with the process that frees the block. This process sets the bit and then reads the word, the
// other one changes the word and then reads the bits.
HolderTable::Tried HolderTable::begin_while(BlockRef ref, Identity me, const std::atomic<std::uint64_t>& word,
                                            std::uint64_t value) noexcept {
  SHMTREE_DCHECK(me != kNoIdentity);
  BlockEntry* block = parts_.table.entry(ref.id);
  if (block == nullptr) return Tried::kNoMemory;
  {
    const std::lock_guard guard(mutex_);
    HoldCounts::Hold* hold = counts_.add(ref.id);
    if (hold == nullptr) return Tried::kNoMemory;
    const bool was_held = hold->leases + hold->in_flight != 0;
    if (was_held && hold->generation != ref.generation) return Tried::kChanged;  // the hold is of another use
    // A bit that is already set comes from the process that started this one, for a hold that is not adopted yet.
    const bool added = block->holders.add(slot_of(me));
    fence_seq_cst();
    if (load_acquire(word) == value) {
      hold->generation = ref.generation;
      ++hold->in_flight;
      return note_hold(*block), Tried::kDone;
    }
    if (!was_held) counts_.erase(hold);
    if (was_held || !added) return Tried::kChanged;
    block->holders.remove(slot_of(me));
  }
  parts_.reclaimer.collect_after_failed_pin(ref.id);
  return Tried::kChanged;
}

void HolderTable::hold_for(BlockRef ref, Identity child) noexcept {
  SHMTREE_DCHECK(child != kNoIdentity);
  BlockEntry* block = parts_.table.entry(ref.id);
  if (block == nullptr) return;
  block->holders.add(slot_of(child));
  note_hold(*block);
}

void HolderTable::note_hold(BlockEntry& block) noexcept {
  store_relaxed(block.since_ns, coarse_monotonic_ns());
  held_.count(block);
}

bool HolderTable::lease_begun(BlockRef ref, std::uint32_t fewer_begun) noexcept {
  SHMTREE_DCHECK(fewer_begun <= 1);
  const std::lock_guard guard(mutex_);
  HoldCounts::Hold* hold = counts_.find(ref.id);
  if (hold == nullptr || hold->in_flight == 0) return false;
  hold->in_flight -= fewer_begun;
  ++hold->leases;
  return true;
}

// Ends a lease, or a hold that did not become one.
void HolderTable::end(BlockRef ref, std::uint32_t HoldCounts::Hold::*what) noexcept {
  const Identity me = parts_.participants.current();
  if (me == kNoIdentity) return;
  {
    const std::lock_guard guard(mutex_);
    HoldCounts::Hold* hold = counts_.find(ref.id);
    // A child that inherited only the object has no such hold, and must not clear the bit.
    if (hold == nullptr || hold->generation != ref.generation || hold->*what == 0) return;
    --(hold->*what);
    if (hold->leases + hold->in_flight != 0) return;
    counts_.erase(hold);
    if (BlockEntry* block = parts_.table.entry(ref.id)) block->holders.remove(slot_of(me));
  }
  parts_.reclaimer.collect(ref);
}

Status HolderTable::begin_new(OwnedBlock& block) {
  auto me = reconciler_.identity();
  if (!me) return std::move(me).error();
  if (!begin(block.ref(), *me)) return no_memory_for_hold();
  block.publish();
  return success();
}

Status HolderTable::begin_existing(BlockRef ref, BlockKind kind, const WaitContext& wait) {
  auto me = reconciler_.identity();
  if (!me) return std::move(me).error();
  // Under the arena lock no process can free the block between the checks and the bit.
  Status locked = reconciler_.lock_arena(wait);
  if (!locked) return locked;
  const BlockEntry* block = parts_.table.is_current(ref) ? parts_.table.entry(ref.id) : nullptr;
  const bool live = block != nullptr && state_of(load_acquire(block->word)) == BlockState::kLive;
  const bool is_it = live && is_kind(*block, kind);
  const bool held = is_it && begin(ref, *me);
  parts_.reclaimer.unlock();
  if (!live) return Error{Code::kNotFound, "the block of this handle was freed: every process released it"};
  if (!is_it) return Error{Code::kIncompatible, "this block of the arena contains another kind of object"};
  if (!held) return no_memory_for_hold();
  return success();
}

// Takes the arena lock, which first runs a requested recovery. That removes dead holders, and messages they received.
Result<bool> HolderTable::is_shared(BlockRef ref, const WaitContext& wait) {
  auto me = reconciler_.identity();
  if (!me) return std::move(me).error();
  Status locked = reconciler_.lock_arena(wait);
  if (!locked) return std::move(locked).error();
  const BlockEntry* block = parts_.table.is_current(ref) ? parts_.table.entry(ref.id) : nullptr;
  const bool shared = block != nullptr && Reclaimer::is_shared(*block, *me);
  parts_.reclaimer.unlock();
  return shared;
}

// Ignores the bits of dead participants.
bool HolderTable::is_held_by_others(BlockRef ref) const noexcept {
  const BlockEntry* block = parts_.table.entry(ref.id);
  if (block == nullptr) return false;
  const Identity me = parts_.participants.current();
  bool held = false;
  block->holders.for_each([&](std::uint32_t slot) {
    held = held || ((me == kNoIdentity || slot != slot_of(me)) && parts_.participants.is_owner_alive(slot));
  });
  return held;
}

bool HolderTable::is_seen(BlockRef ref) noexcept {
  {
    const std::lock_guard guard(mutex_);
    const HoldCounts::Hold* hold = counts_.find(ref.id);
    if (hold != nullptr && hold->generation == ref.generation && hold->leases != 0) return true;
  }
  return is_held_by_others(ref);
}

// A child without bits holds nothing, but may still see the block.
bool HolderTable::is_inherited(BlockRef ref, std::uint32_t forks) noexcept {
  {
    const std::lock_guard guard(mutex_);
    if (forks == this->forks()) return false;
    if (forks < forks_without_holds_) return true;
  }
  return is_held_by_others(ref);
}

// Stores the list, then its length under the arena lock.
Status HolderTable::refer(const OwnedBlock& block, std::span<const BlockRef> referred, const WaitContext& wait,
                          std::uint64_t most) {
  BlockEntry& owner = *parts_.table.entry(block.ref().id);
  const std::uint64_t list_bytes = std::max<std::uint64_t>(referred.size(), most) * sizeof(ListEntry);
  if (list_bytes > block.bytes()) return Error{Code::kInvalid, "the block is too small for the list of its references"};
  const std::uint64_t offset = (block.bytes() - list_bytes) / 8 * 8;
  SHMTREE_DCHECK(offset % alignof(ListEntry) == 0 && offset + list_bytes <= block.bytes());
  auto* list = reinterpret_cast<ListEntry*>(block.data() + offset);
  for (std::size_t i = 0; i < referred.size(); ++i) list[i] = ListEntry{referred[i].id.value, referred[i].generation};
  Status locked = reconciler_.lock_arena(wait);
  if (!locked) return locked;
  store_relaxed(owner.list_offset, offset);
  store_release(owner.list_length, static_cast<std::uint32_t>(referred.size()));
  for (const BlockRef& ref : referred) {
    if (BlockEntry* target = parts_.table.entry(ref.id)) add(target->refcount, 1u);
  }
  parts_.reclaimer.unlock();
  return success();
}

Status HolderTable::refer_also(BlockRef block, BlockRef referred, std::uint64_t already, const WaitContext& wait) {
  BlockEntry& owner = *parts_.table.entry(block.id);
  Status locked = reconciler_.lock_arena(wait);
  if (!locked) return locked;
  const std::uint64_t offset = load_relaxed(owner.list_offset);
  const std::uint64_t available = parts_.table.capacity_of(block.id);
  const bool fits = offset % 8 == 0 && offset <= available && already < (available - offset) / sizeof(ListEntry);
  if (fits && load_relaxed(owner.list_length) == already) {
    auto* list = reinterpret_cast<ListEntry*>(parts_.table.address(block.id) + offset);
    list[already] = ListEntry{referred.id.value, referred.generation};
    store_release(owner.list_length, static_cast<std::uint32_t>(already + 1));
    add(parts_.table.entry(referred.id)->refcount, 1u);
  }
  parts_.reclaimer.unlock();
  return fits ? success() : Error{Code::kInvalid, "no space in the block for another reference"};
}

std::uint64_t HolderTable::lease_count() {
  const std::lock_guard guard(mutex_);
  std::uint64_t count = 0;
  counts_.for_each([&](const HoldCounts::Hold& hold) { count += hold.leases; });
  return count;
}

void HolderTable::pass_to_child(Identity child) noexcept {
  const std::uint32_t number = forks_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (child == kNoIdentity) {
    forks_without_holds_ = number;
    return;
  }
  counts_.for_each([&](const HoldCounts::Hold& hold) {
    // Holds without a lease belong to receiving threads, which the child does not inherit.
    BlockEntry* block = hold.leases == 0 ? nullptr : parts_.table.entry(BlockId{hold.id});
    if (block != nullptr) block->holders.add(slot_of(child));
  });
}

void HolderTable::after_fork_in_child(bool has_bits) noexcept {
  if (has_bits) return counts_.for_each([](HoldCounts::Hold& hold) { hold.in_flight = 0; });
  counts_.clear();
  fork_epoch_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace shmtree::memory
