#include "memory/reconciler.h"

#include <new>
#include <utility>

#include "memory/event.h"
#include "memory/held_locks.h"
#include "platform/brief_wait.h"
#include "platform/dcheck.h"
#include "platform/wait_policy.h"

namespace shmtree::memory {

using namespace platform;

namespace {

ChannelWalker g_walker = nullptr;

constexpr int kMaxPasses = 32;
constexpr int kMaxRepairs = 8;  // repairs that lock() makes even if the deadline has passed

template <class Act>
bool quietly(Act act) noexcept {
  try {
    return act().ok();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

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

// --- DeadParticipants

// A slot counts as dead only if its lock is free while neither its generation nor its status change. A new owner takes
// the lock first. If it takes over a dead participant's slot, it sets the status to kStale and holds nothing yet.
bool DeadParticipants::find(const CheckedFd& file) noexcept {
  bool settled = true;
  const std::uint32_t high = participants_.used_slots();
  for (std::uint32_t number = 0; number < high; ++number) {
    const Participant& other = participants_.slot(number);
    Slot& slot = slots_[number];
    slot.status = load_acquire(other.status);
    slot.generation = load_acquire(other.generation);
    const bool locked = !file.is_ours() || byte_is_locked(file.number(), number);
    if (load_acquire(other.generation) != slot.generation || load_acquire(other.status) != slot.status) {
      settled = false;
      continue;
    }
    slot.is_unlocked = !locked;
    const bool stale = slot.status == static_cast<std::uint32_t>(ParticipantStatus::kStale);
    const bool free = slot.status == static_cast<std::uint32_t>(ParticipantStatus::kFree);
    if (!free && (!locked || stale)) masks_[number / 64] |= ParticipantSet::bit_of(number);
  }
  return settled;
}

bool DeadParticipants::is_dead_writer(Identity writer) const noexcept {
  const Slot& slot = slots_[slot_of(writer)];
  const std::uint32_t newer = (generation_of(writer) - slot.generation) & 0xfffffu;
  if (newer == 0) return slot.is_unlocked;
  // A small difference means an owner that took the slot after the check. A large one means an earlier owner, or a
  // damaged word.
  return newer > kMaxParticipants;
}

bool DeadParticipants::hold_all_of(const ParticipantSet& set) const noexcept {
  for (std::uint32_t i = 0; i < kParticipantWords; ++i) {
    if ((load_seq_cst(set.words[i]) & ~masks_[i]) != 0) return false;
  }
  return true;
}

void DeadParticipants::free_slots() noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(participants_.header().arena_lock));
  const std::uint32_t slots = participants_.used_slots();
  for (std::uint32_t number = 0; number < slots; ++number) {
    Participant& other = participants_.slot(number);
    if (load_relaxed(other.deferred_overflow) != 0) store_relaxed(other.deferred_overflow, 0u);
    if (!contains(number)) continue;
    std::uint32_t status = slots_[number].status;
    const bool stale = status == static_cast<std::uint32_t>(ParticipantStatus::kStale);
    const auto next = stale ? ParticipantStatus::kAttached : ParticipantStatus::kFree;
    compare_swap(other.status, status, static_cast<std::uint32_t>(next));
  }
}

// --- Reconciler

Result<Identity> Reconciler::take_identity() {
  forget_parent();
  const std::uint32_t forks = parts_.participants.forks();
  auto claimed = reserve_slot();
  if (!claimed) return std::move(claimed).error();
  return parts_.participants.enroll(std::move(*claimed), forks);
}

// The slot of a dead owner is swept before it holds anything, since holder bits carry no generation.
Result<ReservedSlot> Reconciler::reserve_slot() {
  auto claimed = parts_.participants.claim(Participants::Claimable::kFreeOrStale);
  if (!claimed || !parts_.participants.is_status(slot_of(claimed->identity), ParticipantStatus::kStale)) return claimed;
  request_recovery(header_);
  Status swept = reconcile_as(claimed->identity, WaitContext{});
  if (!swept) return std::move(swept).error();
  return claimed;
}

Status Reconciler::lock(std::atomic<std::uint32_t>& word, const WaitContext& wait) {
  Identity me = parts_.participants.current();
  if (me == kNoIdentity) [[unlikely]] {
    auto taken = take_identity();
    if (!taken) return std::move(taken).error();
    me = *taken;
  }
  RobustLock lock(word, parts_.participants);
  for (int repairs = 0;; ++repairs) {
    if (!lock.try_lock_as(me)) {
      Status taken = lock.wait_and_lock(me, wait);
      if (!taken) return taken;
    }
    if (!needs_recovery(header_)) [[likely]]
      return success();
    lock.unlock();
    if (repairs >= kMaxRepairs && wait.deadline.passed()) {
      return Error{Code::kTimeout,
                   "timed out: the arena's state is still inconsistent after " + std::to_string(repairs) + " repairs"};
    }
    Status repaired = reconcile(wait);
    if (!repaired) return repaired;
  }
}

bool Reconciler::lock_quietly(std::atomic<std::uint32_t>& word, const WaitContext& wait) noexcept {
  return quietly([&] { return lock(word, wait); });
}

bool Reconciler::lock_briefly(std::atomic<std::uint32_t>& word) noexcept {
  if (needs_recovery(header_)) return false;
  RobustLock lock(word, parts_.participants);
  if (!lock.try_lock()) {
    if (lock.has_dead_owner()) return false;
    const std::int64_t began = monotonic_ns();
    for (BriefWait owner; !lock.try_lock(); owner.pause()) {
      if (needs_recovery(header_) || monotonic_ns() - began > wait_policy::kDropLockNs) return false;
    }
  }
  if (!needs_recovery(header_)) [[likely]]
    return true;
  lock.unlock();
  return false;
}

bool Reconciler::reconcile_quietly(const WaitContext& wait) noexcept {
  return quietly([&] { return reconcile(wait); });
}

Status Reconciler::reconcile(const WaitContext& wait) {
  auto me = identity();
  if (!me) return std::move(me).error();
  return reconcile_as(*me, wait);
}

Status Reconciler::reconcile_as(Identity me, const WaitContext& wait) {
  SHMTREE_DCHECK(!HeldLocks::contains(header_.reconcile_lock) && !HeldLocks::contains(header_.arena_lock));
  // Without descriptors, this process cannot tell the living from the dead.
  if (Status kept = parts_.participants.check_descriptors(); !kept) return kept;
  RobustLock lock(header_.reconcile_lock, parts_.participants);
  Status locked = lock.lock(me, wait);
  if (!locked) return locked;
  Status result = success();
  ReconcilePass::Unfinished unfinished;
  bool starved = false;  // this process has no memory for it; another one may have
  try {
    result = repeat_passes(me, wait, unfinished);
  } catch (const std::bad_alloc&) {
    starved = true;
  }
  add(header_.reconciles, std::uint64_t{1});
  lock.unlock();
  // If this process is killed from here on, recovery treats these blocks like any others that it was writing.
  for (const BlockRef& ref : unfinished) parts_.reclaimer.give_up_unfinished(ref);
  // Runs the frees that other processes deferred because `recovery_requests` kept them from the arena lock.
  if (load_seq_cst(header_.deferred_hint) != 0 && parts_.reclaimer.try_lock()) parts_.reclaimer.unlock();
  notify_all(header_.space);
  if (starved) throw std::bad_alloc();
  return result;
}

Status Reconciler::repeat_passes(Identity me, const WaitContext& wait, ReconcilePass::Unfinished& unfinished) {
  for (int pass = 0; pass < kMaxPasses; ++pass) {
    std::uint32_t epoch = load_acquire(header_.recovery_requests);
    if (epoch == 0) break;
    auto done = ReconcilePass(arena_, parts_, me, wait, unfinished).run();
    if (!done) return std::move(done).error();
    if (*done)
      compare_swap(header_.recovery_requests, epoch, 0u);  // cleared last; a death found meanwhile leaves it set
  }
  return success();
}

}  // namespace shmtree::memory
