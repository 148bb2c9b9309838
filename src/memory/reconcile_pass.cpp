#include "memory/reconcile_pass.h"

#include <algorithm>

#include "platform/file.h"

namespace shmtree::memory {

using namespace platform;

namespace {

ChannelWalker g_walker = nullptr;
GrantCheck g_grants = nullptr;

Error no_address_space() {
  return Error{Code::kOutOfSharedMemory, "no address space left to map what a recovery has to look at"};
}

}  // namespace

void ReconcilePass::set_channel_walker(ChannelWalker walker, GrantCheck grants) noexcept {
  g_walker = walker;
  g_grants = grants;
}

void ReconcilePass::mark(BlockRef ref) noexcept {
  const BlockEntry* block = parts_.table.entry(ref.id);
  if (block == nullptr) return;
  auto& marks = marked_[ref.id.size_class() - kMinClass];
  if (ref.id.index() >= marks.size()) return;
  if (generation_of_block(load_acquire(block->word)) == ref.generation) marks[ref.id.index()] = 1;
}

Result<bool> ReconcilePass::run() {
  Status marks = restore_marks();
  if (!marks) return std::move(marks).error();
  find_dead();
  if (!map_tables()) return no_address_space();
  note_words();
  Status walked = walk_channels();
  if (!walked) return std::move(walked).error();
  Status locked = lock(header_.arena_lock);
  if (!locked) return std::move(locked).error();
  const bool done = rebuild();
  parts_.reclaimer.unlock();
  if (unmapped_) return no_address_space();
  return done;
}

bool ReconcilePass::map_tables() noexcept {
  constexpr std::uint64_t kStep = 512;  // less than what is mapped at once
  for (unsigned k = kMinClass; k <= parts_.table.geometry().max_class(); ++k) {
    const std::uint64_t high = parts_.table.used_entries(k);
    for (std::uint64_t index = 0; index < high; index += kStep) {
      if (parts_.table.entry(BlockId::make(k, index)) == nullptr) return false;
    }
    if (high != 0 && parts_.table.entry(BlockId::make(k, high - 1)) == nullptr) return false;
  }
  return true;
}

// The high-water marks bound every walk, so they come first.
Status ReconcilePass::restore_marks() {
  Status locked = lock(header_.arena_lock);
  if (!locked) return locked;
  parts_.pool.restore_marks();
  parts_.reclaimer.arena_lock().unlock();
  return success();
}

// A slot counts as dead only if nobody has its lock while neither generation nor status move: a newcomer takes the lock
// first, and one that takes a dead participant's slot says so in the status and holds nothing yet.
void ReconcilePass::find_dead() noexcept {
  const std::uint32_t high = parts_.participants.used_slots();
  for (std::uint32_t slot = 0; slot < high; ++slot) {
    const Participant& other = parts_.participants.slot(slot);
    const std::uint32_t status = load_acquire(other.status);
    const std::uint32_t generation = load_acquire(other.generation);
    const bool locked = byte_is_locked(parts_.mapping.fd(), slot);
    generations_[slot] = generation;
    if (load_acquire(other.generation) != generation || load_acquire(other.status) != status) {
      mark_dirty(header_);  // it changes hands: the next pass sees who has it
      continue;
    }
    written_by_nobody_[slot] = !locked;
    const bool stale = status == static_cast<std::uint32_t>(ParticipantStatus::kStale);
    if (status == static_cast<std::uint32_t>(ParticipantStatus::kFree) || (locked && !stale)) continue;
    dead_[slot] = true;
    status_[slot] = status;
    dead_mask_[slot / 64] |= ParticipantSet::bit_of(slot);
  }
}

// Whether the writer was dead when the pass began. One that died since may have published the block after its channel
// was walked; its own death brings the next pass.
bool ReconcilePass::is_dead_writer(Identity writer) const noexcept {
  const std::uint32_t slot = slot_of(writer);
  const std::uint32_t newer = (generation_of(writer) - generations_[slot]) & 0xfffffu;
  if (newer == 0) return written_by_nobody_[slot];
  // An owner of the slot that came after the look; or one before, or bits that no participant wrote.
  return newer > kMaxParticipants;
}

bool ReconcilePass::is_held_by_living(const BlockEntry& block) const noexcept {
  for (std::uint32_t i = 0; i < kParticipantWords; ++i) {
    if ((load_full(block.holders.words[i]) & ~dead_mask_[i]) != 0) return true;
  }
  return false;
}

void ReconcilePass::note_words() {
  for (unsigned k = kMinClass; k <= parts_.table.geometry().max_class(); ++k) {
    const std::uint64_t high = parts_.table.walked_entries(k);
    words_[k - kMinClass].resize(high);
    marked_[k - kMinClass].assign(high, 0);
  }
  std::size_t unfinished = 0;
  parts_.table.for_each([&](BlockId id, BlockEntry& block) {
    auto& words = words_[id.size_class() - kMinClass];
    if (id.index() >= words.size()) return;
    const std::uint64_t word = words[id.index()] = load_acquire(block.word);
    if (state_of(word) == BlockState::kWriting && is_dead_writer(writer_of(word))) ++unfinished;
  });
  unfinished_.reserve(unfinished_.size() + unfinished);  // rebuild() may not allocate
}

Status ReconcilePass::walk_channels() {
  for (unsigned k = kMinClass; k <= parts_.table.geometry().max_class(); ++k) {
    for (std::uint64_t index = 0; index < words_[k - kMinClass].size(); ++index) {
      const std::uint64_t word = words_[k - kMinClass][index];
      const BlockId id = BlockId::make(k, index);
      const BlockEntry* block = parts_.table.entry(id);
      if (state_of(word) != BlockState::kLive || block == nullptr || !is_kind(*block, BlockKind::kChannel)) continue;
      Status walked = walk_channel(BlockRef{id, generation_of_block(word)}, *block);
      if (!walked) return walked;
    }
  }
  return success();
}

Status ReconcilePass::walk_channel(BlockRef channel, const BlockEntry& block) {
  if (!is_held_by_living(block) && (g_grants == nullptr || !g_grants(arena_, channel))) {
    abandoned_channels_.push_back(channel);
    return success();
  }
  // Without the walker nothing can be said about what the channel keeps, and nothing may be given up.
  if (g_walker == nullptr) return Error{Code::kInvalid, "channels cannot be recovered: no walker was set"};
  mark(channel);
  g_walker(arena_, channel, *this);
  if (!failed_) return failed_;
  if (unmapped_) return no_address_space();
  return success();
}

// Everything up to the freeing only recomputes what the truth says, so a kill anywhere leaves a state from which the
// next pass computes the same.
bool ReconcilePass::rebuild() noexcept {
  for (const BlockRef& channel : abandoned_channels_) {
    if (is_held_by_living(*parts_.table.entry(channel.id))) return false;  // it was opened meanwhile
  }
  if (!map_tables()) {  // there may be more than when they were noted
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
  parts_.pool.rebuild();
  free_candidates();
  store_release(header_.garbage, 0u);
  free_slots();
  parts_.reclaimer.run_deferred_frees();
  return true;
}

void ReconcilePass::forget_dead_in(BlockId id, BlockEntry& block) noexcept {
  for (std::uint32_t i = 0; i < kParticipantWords; ++i) {
    const std::uint64_t mask = dead_mask_[i];
    if (mask != 0 && (load_relaxed(block.holders.words[i]) & mask) != 0) clear_bits(block.holders.words[i], mask);
  }
  std::uint64_t word = load_acquire(block.word);
  if (state_of(word) != BlockState::kWriting || !was_noted(id, word) || !is_dead_writer(writer_of(word))) return;
  if (is_marked(id)) {  // a message like any other
    compare_swap(block.word, word, live_word(generation_of_block(word)));
    return;
  }
  // Nobody will ever finish it. It may have been killed between raising `committed` and the pages, or between the pages
  // and lowering it, so this process takes the block over and gives all of its pages back, outside the locks.
  if (unfinished_.size() == unfinished_.capacity()) return;  // a damaged word: the next pass has counted it
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
}

bool ReconcilePass::is_candidate(BlockId id, std::uint64_t word) const noexcept {
  return was_noted(id, word) && state_of(word) == BlockState::kLive && !is_marked(id);
}

void ReconcilePass::free_candidates() noexcept {
  parts_.table.for_each([this](BlockId id, BlockEntry& block) {
    const std::uint64_t word = load_acquire(block.word);
    if (!is_candidate(id, word)) return;
    clear_bits(block.flags, std::uint32_t{kDelivered});  // no record names it
    if (is_kind(block, BlockKind::kChannel) && !parts_.reclaimer.is_referenced(block)) {
      parts_.pool.put(id, block);
    } else {
      parts_.reclaimer.free_if_unreferenced(BlockRef{id, generation_of_block(word)});
    }
  });
}

// Those of the dead become free, last; a stale one is swept now, and its new owner's.
void ReconcilePass::free_slots() noexcept {
  const std::uint32_t slots = parts_.participants.used_slots();
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    Participant& other = parts_.participants.slot(slot);
    if (load_relaxed(other.deferred_overflow) != 0) store_relaxed(other.deferred_overflow, 0u);
    if (!dead_[slot]) continue;
    std::uint32_t status = status_[slot];
    const bool stale = status == static_cast<std::uint32_t>(ParticipantStatus::kStale);
    const auto next = stale ? ParticipantStatus::kAttached : ParticipantStatus::kFree;
    compare_swap(other.status, status, static_cast<std::uint32_t>(next));
  }
}

}  // namespace shmtree::memory
