#include "memory/reclaimer.h"

#include <algorithm>
#include <utility>

#include "memory/event.h"
#include "memory/held_locks.h"
#include "memory/transfer_table.h"
#include "platform/atomics.h"
#include "platform/dcheck.h"
#include "platform/file.h"

namespace shmtree::memory {

using namespace platform;

namespace {

constexpr std::uint64_t kMaxPunched = 64u << 20;  // by one call of trim_excess()
Reclaimer::ChannelWaker g_waker = nullptr;

}  // namespace

void Reclaimer::set_channel_waker(ChannelWaker waker) noexcept {
  g_waker = waker;
}

bool Reclaimer::try_lock_as(Identity me) noexcept {
  RobustLock lock = arena_lock();
  if (!lock.try_lock_as(me)) return false;
  if (!needs_recovery(header_)) return true;
  lock.unlock();
  return false;
}

void Reclaimer::unlock() noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header_.arena_lock));
  for (;;) {
    if (load_seq_cst(header_.deferred_hint) != 0) run_deferred_frees();
    const bool freed = load_relaxed(header_.freed) != 0;
    if (freed) store_relaxed(header_.freed, 0u);
    arena_lock().unlock();
    // Only if a block was freed: a waiter that takes the lock and finds no space must not wake itself.
    if (freed) notify_all(header_.space);
    if (load_seq_cst(header_.deferred_hint) == 0 || !try_lock()) return;
  }
}

void Reclaimer::collect(BlockRef ref) noexcept {
  BlockEntry* block = table_.entry(ref.id);
  const Identity me = participants_.current();
  if (block == nullptr || me == kNoIdentity) return;
  if (is_referenced(*block)) return;  // its last keeper frees it
  free_or_defer(ref, me);
  trim_excess();
}

// If the block is of a kind that channels keep, only a recovery can tell whether one does.
void Reclaimer::collect_after_failed_pin(BlockId id) noexcept {
  fence_seq_cst();  // the bit is gone before the word is read: a process that saw the bit saw the block live
  const BlockEntry* block = table_.entry(id);
  if (block == nullptr) return;
  const std::uint64_t word = load_acquire(block->word);
  if (state_of(word) != BlockState::kLive || is_referenced(*block)) return;
  if (may_be_queued(load_relaxed(block->kind))) {
    request_recovery(header_);
  } else {
    collect(BlockRef{id, generation_of_block(word)});
  }
}

void Reclaimer::free_or_defer(BlockRef ref, Identity me) noexcept {
  SHMTREE_DCHECK(me != kNoIdentity);
  if (try_lock_as(me)) {
    free_if_unreferenced(ref);
    unlock();
  } else if (defer_free(ref, me) && try_lock_as(me)) {
    unlock();  // runs what was deferred
  }
}

// Returns false if the list is full, and requests a recovery, which finds the block.
bool Reclaimer::defer_free(BlockRef ref, Identity me) noexcept {
  Participant& mine = participants_.slot_of_identity(me);
  const std::uint64_t packed = pack(ref);
  for (std::uint32_t i = 0; i < kDeferredFrees; ++i) {
    std::atomic<std::uint64_t>& entry = mine.deferred_frees[(ref.id.index() + i) % kDeferredFrees];
    std::uint64_t empty = 0;
    if (load_relaxed(entry) == 0 && compare_swap(entry, empty, packed)) {
      // A read-modify-write, not a store: run_deferred_frees() reads the hint of the last process, and has to see the
      // frees that earlier processes deferred as well.
      exchange_seq_cst(header_.deferred_hint, 1u);
      fence_seq_cst();
      return true;
    }
  }
  store_relaxed(mine.deferred_overflow, 1u);
  request_recovery(header_);
  return false;
}

void Reclaimer::run_deferred_frees() noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header_.arena_lock));
  exchange_seq_cst(header_.deferred_hint, 0u);  // sees each free that was deferred before a hint that this clears
  const std::uint32_t high = participants_.used_slots();
  for (std::uint32_t number = 0; number < high; ++number) {
    for (auto& entry : participants_.slot(number).deferred_frees) {
      if (load_relaxed(entry) == 0) continue;
      const std::uint64_t packed = exchange_seq_cst(entry, std::uint64_t{0});
      if (packed != 0) free_if_unreferenced(unpack(packed));
    }
  }
}

bool Reclaimer::is_referenced(const BlockEntry& block) const noexcept {
  if (load_seq_cst(block.refcount) != 0 || (load_seq_cst(block.flags) & kDelivered) != 0) return true;
  const std::uint32_t words = (participants_.used_slots() + 63) / 64;
  for (std::uint32_t i = 0; i < words; ++i) {
    if (load_seq_cst(block.holders.words[i]) != 0) return true;
  }
  return false;
}

// A receiver sets its bit before the message is removed, so this reads the refcount before the bits.
bool Reclaimer::is_shared(const BlockEntry& block, Identity me) noexcept {
  SHMTREE_DCHECK(me != kNoIdentity);
  if (load_acquire(block.refcount) != 0 || (load_acquire(block.flags) & kDelivered) != 0) return true;
  for (std::uint32_t i = 0; i < kParticipantWords; ++i) {
    const std::uint64_t mine = i == slot_of(me) / 64 ? ParticipantSet::bit_of(slot_of(me)) : 0;
    if ((load_seq_cst(block.holders.words[i]) & ~mine) != 0) return true;
  }
  return false;
}

void Reclaimer::set_delivered(BlockRef ref, bool delivered) noexcept {
  BlockEntry* block = table_.entry(ref.id);
  if (block == nullptr) return;
  if (delivered) {
    set_bits(block->flags, std::uint32_t{kDelivered});
  } else {
    clear_bits(block->flags, std::uint32_t{kDelivered});
  }
}

bool Reclaimer::try_set_delivered(BlockRef ref) noexcept {
  if (!arena_lock().try_lock()) return false;
  set_delivered(ref, true);
  unlock();
  return true;
}

void Reclaimer::free_if_unreferenced(BlockRef ref) noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header_.arena_lock));
  BlockEntry* block = table_.entry(ref.id);
  if (block == nullptr || load_acquire(block->word) != live_word(ref.generation)) return;
  if (is_referenced(*block)) return;
  if (is_kind(*block, BlockKind::kChannel)) {
    // A reconcile finds the blocks that the channel keeps, in one walk for all such channels.
    add(header_.abandoned_channels, 1u);
    return;
  }
  // Chains the blocks to check next, since nothing may be allocated here.
  Orphans orphans;
  drop_references(ref, *block, orphans);
  pool_.put(ref.id, *block);
  for (; orphans.count != 0; --orphans.count) {
    const BlockRef next = unpack(orphans.first);
    BlockEntry* orphan = table_.entry(next.id);
    if (orphan == nullptr) return;
    orphans.first = load_relaxed(orphan->next_free);
    if (load_acquire(orphan->word) != live_word(next.generation)) continue;
    if (is_referenced(*orphan)) continue;
    if (is_kind(*orphan, BlockKind::kChannel)) {
      add(header_.abandoned_channels, 1u);
      continue;
    }
    drop_references(next, *orphan, orphans);
    pool_.put(next.id, *orphan);
  }
}

void Reclaimer::drop_reference(BlockRef ref) noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header_.arena_lock));
  BlockEntry* block = table_.is_current(ref) ? table_.entry(ref.id) : nullptr;
  if (block == nullptr || load_relaxed(block->refcount) == 0) return;
  subtract(block->refcount, 1u);
  free_if_unreferenced(ref);
}

// Drops one reference of `owner`, and adds the target to `orphans` if it has no references left.
void Reclaimer::drop_reference_of(const BlockEntry& owner, BlockRef ref, Orphans& orphans) noexcept {
  BlockEntry* target = table_.is_current(ref) ? table_.entry(ref.id) : nullptr;
  if (target == nullptr || target == &owner || load_relaxed(target->refcount) == 0) return;
  if (subtract(target->refcount, 1u) != 1) return;
  store_relaxed(target->next_free, orphans.first);
  orphans.first = pack(ref);
  ++orphans.count;
}

// Drops the references of a block that is about to be freed: those of its list, and those of the transfers that it
// carries, which end.
void Reclaimer::drop_references(BlockRef ref, BlockEntry& block, Orphans& orphans) noexcept {
  for (const ListEntry& item : table_.references_of(ref.id, block)) drop_reference_of(block, ref_of(item), orphans);
  store_relaxed(block.list_length, 0u);
  if ((load_relaxed(block.flags) & kCarriesTransfers) == 0) [[likely]]
    return;
  const TransferTable transfers(header_, table_, participants_);
  transfers.end_lost([ref](BlockRef carrier) { return carrier == ref; },
                     [&](std::uint64_t state, std::uint64_t target) {
                       if (target != 0 && TransferTable::has_reference(state))
                         drop_reference_of(block, unpack(target), orphans);
                       announce_lost(state, target);
                     });
}

void Reclaimer::announce_lost(std::uint64_t state, std::uint64_t block) noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header_.arena_lock));
  if (transferred(state) != Transferred::kMemory && g_waker != nullptr) g_waker(arena_, unpack(block));
}

Reclaimer::Evicted Reclaimer::evict_and_unlock(std::uint64_t want, WaitHooks* hooks) noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header_.arena_lock));
  BlockPool::Victim victims[BlockPool::kMaxVictims];
  const Identity me = participants_.current();
  const std::size_t count = participants_.is_pinned() ? 0 : pool_.take_victims(want, me, victims);
  SHMTREE_DCHECK(count <= BlockPool::kMaxVictims);
  unlock();
  Evicted evicted;
  if (count == 0) return evicted;
  evicted.done = false;
  const BlockingScope blocking(hooks);
  for (std::size_t i = 0; i < count; ++i) {
    if (give_back(victims[i].block, victims[i].keep, victims[i].bytes)) {
      evicted.bytes += victims[i].bytes;
    } else {
      evicted.done = true;
    }
  }
  return evicted;
}

// Runs after a release. Returns pages beyond the recent maximum of use to the system, piece by piece.
void Reclaimer::trim_excess() noexcept {
  std::uint64_t want = std::min(pool_.excess_bytes(), kMaxPunched);
  while (want != 0 && try_lock()) {
    const Evicted evicted = evict_and_unlock(want, nullptr);
    if (evicted.done) return;
    want -= std::min(want, evicted.bytes);
  }
}

// Freeing the block corrects the counts under the arena lock, so that no reconcile finds them half changed.
bool Reclaimer::give_back(BlockRef ref, std::uint64_t keep, std::uint64_t bytes) noexcept {
  SHMTREE_DCHECK(keep + bytes <= std::uint64_t{1} << ref.id.size_class());
  BlockEntry& block = *table_.entry(ref.id);
  const bool given =
      file_.is_ours() && release_pages(file_.number(), table_.geometry().data_offset(ref.id) + keep, bytes);
  if (!given) keep += bytes;
  store_relaxed(block.size, keep);
  store_relaxed(block.kind, static_cast<std::uint32_t>(BlockKind::kMessage));
  set_bits(block.flags, std::uint32_t{kTrimmed});
  store_seq_cst(block.word, live_word(ref.generation));
  if (const Identity me = participants_.current(); me != kNoIdentity) free_or_defer(ref, me);
  return given;
}

// The writer may have died between raising `committed` and allocating the pages. This releases all pages, so that the
// count is right. If DMA pins forbid that, it allocates the missing pages.
void Reclaimer::give_up_unfinished(BlockRef ref) noexcept {
  const BlockEntry* block = table_.entry(ref.id);
  if (block == nullptr) return;
  const std::uint64_t committed = committed_of(*block, ref.id.size_class());
  // A process that sets a DMA pin from here on registers blocks that it holds. None can hold this one before it is
  // freed.
  if (!participants_.is_pinned()) {
    give_back(ref, 0, committed);
    return;
  }
  // If this fails, the first write to a page allocates it.
  if (file_.is_ours())
    static_cast<void>(try_commit_pages(file_.number(), table_.geometry().data_offset(ref.id), committed));
  give_back(ref, committed, 0);
}

// --- OwnedBlock

void OwnedBlock::publish() noexcept {
  SHMTREE_DCHECK(valid());
  Reclaimer& reclaimer = *std::exchange(reclaimer_, nullptr);
  std::uint64_t word = block_word(BlockState::kWriting, writer_, ref_.generation);
  // A receiver may have made the block live already, and even have released it.
  compare_swap_seq_cst(reclaimer.table_.entry(ref_.id)->word, word, live_word(ref_.generation));
}

void OwnedBlock::give_back() noexcept {
  Reclaimer& reclaimer = *std::exchange(reclaimer_, nullptr);
  BlockEntry* entry = reclaimer.table_.entry(ref_.id);
  // In a forked child the block is still the parent's.
  if (entry == nullptr || writer_ != reclaimer.participants_.current()) return;
  // No other process knows the block, so it can be freed at once. A channel's block would wait for a reconcile.
  store_relaxed(entry->kind, static_cast<std::uint32_t>(BlockKind::kMessage));
  std::uint64_t word = block_word(BlockState::kWriting, writer_, ref_.generation);
  if (compare_swap_seq_cst(entry->word, word, live_word(ref_.generation))) {
    reclaimer.collect(ref_);
  }
}

}  // namespace shmtree::memory
