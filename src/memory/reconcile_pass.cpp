#include "memory/reconcile_pass.h"

#include "memory/held_locks.h"
#include "platform/dcheck.h"

namespace shmtree::memory {

using namespace platform;

namespace {

ChannelWalker g_walker = nullptr;

}  // namespace

void ReconcilePass::set_channel_walker(ChannelWalker walker) noexcept {
  g_walker = walker;
}

void ReconcilePass::mark(BlockRef ref) noexcept {
  const BlockEntry* block = parts_.table.entry(ref.id);
  if (block == nullptr) return;
  if (generation_of_block(load_acquire(block->word)) == ref.generation) snapshot_.mark(ref.id);
}

Result<bool> ReconcilePass::run() {
  SHMTREE_DCHECK(HeldLocks::contains(parts_.mapping.header().reconcile_lock));
  Status marks = restore_marks();
  if (!marks) return std::move(marks).error();
  if (!dead_.find(parts_.mapping.file())) request_recovery(parts_.mapping.header());
  if (!map_tables()) return parts_.mapping.unmapped("the tables that recovery reads");
  take_snapshot();
  walk_transfers();
  Status walked = walk_channels();
  if (!walked) return std::move(walked).error();
  Status locked = lock(parts_.mapping.header().arena_lock);
  if (!locked) return std::move(locked).error();
  const bool done = rebuild();
  parts_.reclaimer.unlock();
  if (unmapped_) return parts_.mapping.unmapped("the tables that recovery reads");
  return done;
}

bool ReconcilePass::map_tables() noexcept {
  constexpr std::uint64_t kStep = 512;  // fewer entries than a mapped piece has
  for (unsigned k = kMinClass; k <= parts_.table.geometry().max_class(); ++k) {
    const std::uint64_t high = parts_.table.used_entries(k);
    for (std::uint64_t index = 0; index < high; index += kStep) {
      if (parts_.table.entry(BlockId::make(k, index)) == nullptr) return false;
    }
    if (high != 0 && parts_.table.entry(BlockId::make(k, high - 1)) == nullptr) return false;
  }
  return true;
}

// Every walk stops at the high-water marks, so the pass restores them first.
Status ReconcilePass::restore_marks() {
  Status locked = lock(parts_.mapping.header().arena_lock);
  if (!locked) return locked;
  parts_.pool.restore_marks();
  parts_.reclaimer.arena_lock().unlock();
  return success();
}

void ReconcilePass::take_snapshot() {
  std::size_t unfinished = 0;
  snapshot_.take(parts_.table, [&](std::uint64_t word) {
    unfinished += state_of(word) == BlockState::kWriting && dead_.is_dead_writer(writer_of(word));
  });
  unfinished_.reserve(unfinished_.size() + unfinished);  // rebuild() may not allocate
}

// Starts the time limit of transfers with a dead giver. They have no reference to their blocks from then on.
void ReconcilePass::walk_transfers() noexcept {
  Expiry expiry(parts_.participants);
  const Walked walked = transfers_.walk([&](BlockRef block, std::span<Transfer> transfers) {
    if (block.id.value != 0) mark(block);
    for (Transfer& transfer : transfers) expiry.counts(transfer);
    return true;
  });
  if (walked == Walked::kUnmapped) give_up();
}

// Walks the channels that are kept. The walk of one may mark the message that keeps another one.
Status ReconcilePass::walk_channels() {
  std::vector<BlockRef>& left = abandoned_channels_;
  snapshot_.for_each([&](BlockId id, std::uint64_t word) {
    const BlockEntry* block = state_of(word) == BlockState::kLive ? parts_.table.entry(id) : nullptr;
    if (block != nullptr && is_kind(*block, BlockKind::kChannel)) left.push_back({id, generation_of_block(word)});
    return true;
  });
  for (bool walked = true; walked;) {
    walked = false;
    for (std::size_t i = 0; i < left.size();) {
      const BlockRef channel = left[i];
      if (!is_kept(channel)) {
        ++i;
        continue;
      }
      Status done = walk_channel(channel);
      if (!done) return done;
      walked = true;
      left[i] = left.back();
      left.pop_back();
    }
  }
  return success();
}

// False also if the message that keeps the channel is not marked yet.
bool ReconcilePass::is_kept(BlockRef channel) const noexcept {
  if (!dead_.hold_all_of(parts_.table.entry(channel.id)->holders)) return true;
  const auto is_in_transit = [&](Transferred end) {
    return transfers_.for_each_of(pack(channel), end, [&](std::uint64_t, const Transfer& transfer) {
      const std::uint64_t carrier = load_relaxed(transfer.carrier);
      return carrier != 0 && is_lost(unpack(carrier));
    }) == Walked::kStopped;
  };
  return is_in_transit(Transferred::kSendingEnd) || is_in_transit(Transferred::kReceivingEnd);
}

// Returns true if the block is free, or if this pass frees it, unless a channel that is not walked yet keeps it.
bool ReconcilePass::is_lost(BlockRef carrier) const noexcept {
  const BlockEntry* block = parts_.table.is_current(carrier) ? parts_.table.entry(carrier.id) : nullptr;
  if (block == nullptr) return true;
  if (!is_kind(*block, BlockKind::kMessage) || load_relaxed(block->refcount) != 0) return false;
  const std::uint64_t word = load_acquire(block->word);
  const bool is_candidate = word == live_word(carrier.generation) && snapshot_.is_unchanged(carrier.id, word);
  return is_candidate && !snapshot_.is_marked(carrier.id) && dead_.hold_all_of(block->holders);
}

Status ReconcilePass::walk_channel(BlockRef channel) {
  SHMTREE_DCHECK(!HeldLocks::contains(parts_.mapping.header().arena_lock));
  // Without the walker, the channel may keep any block, so nothing may be freed.
  if (g_walker == nullptr) return Error{Code::kInvalid, "channels cannot be recovered: no walker was set"};
  mark(channel);
  g_walker(arena_, channel, *this);
  if (!failed_) return failed_;
  if (unmapped_) return parts_.mapping.unmapped("the tables that recovery reads");
  return success();
}

// Until it frees blocks, it only derives state from primary state. So after a kill anywhere the next pass derives the
// same.
bool ReconcilePass::rebuild() noexcept {
  SHMTREE_DCHECK(failed_.ok() && HeldLocks::contains(parts_.mapping.header().arena_lock));
  if (!map_tables()) {  // there may be more tables than at the snapshot
    unmapped_ = true;
    return false;
  }
  parts_.table.for_each([this](BlockId id, BlockEntry& block) {
    forget_dead_in(id, block);
    const std::uint64_t most = std::uint64_t{1} << id.size_class();
    if (load_relaxed(block.committed) > most) store_relaxed(block.committed, most);
    store_relaxed(block.refcount, 0u);
  });
  count_refs();
  if (unmapped_) return false;
  for (const BlockRef& channel : abandoned_channels_) {
    // It was opened meanwhile, or is_lost() read a count of 0 that a killed pass had not rebuilt.
    if (is_kept(channel)) return false;
  }
  parts_.pool.rebuild();
  std::atomic<std::uint32_t>& abandoned = parts_.mapping.header().abandoned_channels;
  store_release(abandoned, 0u);
  free_unreferenced();
  dead_.free_slots();
  parts_.reclaimer.run_deferred_frees();
  return load_acquire(abandoned) == 0;  // the messages of this pass may have kept other channels
}

void ReconcilePass::forget_dead_in(BlockId id, BlockEntry& block) noexcept {
  for (std::uint32_t i = 0; i < kParticipantWords; ++i) {
    const std::uint64_t mask = dead_.mask(i);
    if (mask != 0 && (load_relaxed(block.holders.words[i]) & mask) != 0) clear_bits(block.holders.words[i], mask);
  }
  std::uint64_t word = load_acquire(block.word);
  if (state_of(word) != BlockState::kWriting || !snapshot_.is_unchanged(id, word)) return;
  if (!dead_.is_dead_writer(writer_of(word))) return;
  if (snapshot_.is_marked(id)) {  // a channel keeps the message
    compare_swap_seq_cst(block.word, word, live_word(generation_of_block(word)));
    return;
  }
  // The block will stay unfinished. Its writer may have died between raising `committed` and allocating the pages, or
  // between releasing pages and lowering it. So this process takes the block over, and later releases its pages outside
  // the locks.
  SHMTREE_DCHECK(unfinished_.size() < unfinished_.capacity());  // take_snapshot() has counted this word
  const BlockRef ref{id, generation_of_block(word)};
  store_relaxed(block.list_length, 0u);
  if (compare_swap(block.word, word, block_word(BlockState::kWriting, me_, ref.generation))) unfinished_.push_back(ref);
}

void ReconcilePass::count_refs() noexcept {
  parts_.table.for_each([this](BlockId id, BlockEntry& block) {
    if (state_of(load_acquire(block.word)) == BlockState::kFree) return;
    if (load_acquire(block.list_length) != 0 && parts_.table.address(id) == nullptr) unmapped_ = true;
    for (const ListEntry& item : parts_.table.references_of(id, block)) {
      const BlockRef ref = ref_of(item);
      if (ref.id != id && parts_.table.is_current(ref)) add(parts_.table.entry(ref.id)->refcount, 1u);
    }
  });
  transfers_.end_lost(
      [this](BlockRef carrier) { return is_lost(carrier); },
      [this](std::uint64_t state, std::uint64_t block) { parts_.reclaimer.announce_lost(state, block); });
  transfers_.for_each([this](const Transfer& transfer) {
    const std::uint64_t state = load_acquire(transfer.state);
    const BlockRef ref = unpack(load_relaxed(transfer.block)), carrier = unpack(load_relaxed(transfer.carrier));
    if (state != 0 && parts_.table.is_current(carrier))
      set_bits(parts_.table.entry(carrier.id)->flags, std::uint32_t{kCarriesTransfers});
    if (TransferTable::has_reference(state) && parts_.table.is_current(ref))
      add(parts_.table.entry(ref.id)->refcount, 1u);
    return true;
  });
}

void ReconcilePass::free_unreferenced() noexcept {
  parts_.table.for_each([this](BlockId id, BlockEntry& block) {
    const std::uint64_t word = load_acquire(block.word);
    const bool unmarked = snapshot_.is_unchanged(id, word) && !snapshot_.is_marked(id);
    if (!unmarked || state_of(word) != BlockState::kLive) return;
    clear_bits(block.flags, std::uint32_t{kDelivered});  // no record names it
    if (is_kind(block, BlockKind::kChannel) && !parts_.reclaimer.is_referenced(block)) {
      parts_.pool.put(id, block);
    } else {
      parts_.reclaimer.free_if_unreferenced(BlockRef{id, generation_of_block(word)});
    }
  });
}

}  // namespace shmtree::memory
