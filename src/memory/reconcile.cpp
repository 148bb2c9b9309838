#include <algorithm>
#include <new>

#include "memory/event.h"
#include "memory/reconciler.h"
#include "platform/atomics.h"

namespace shmtree::memory {

using namespace platform;

namespace {

constexpr int kMostPasses = 32;

Arena::ChannelWalker g_walker = nullptr;
Arena::GrantCheck g_grants = nullptr;

}  // namespace

void Arena::set_channel_walker(ChannelWalker walker, GrantCheck grants) noexcept {
  g_walker = walker;
  g_grants = grants;
}

Status Arena::reconcile(const WaitContext& wait) {
  auto me = identity();
  if (!me) return std::move(me).error();
  return reconcile_as(*me, wait);
}

Status Arena::reconcile_as(Identity me, const WaitContext& wait) {
  Status locked = success();
  std::uint32_t expected = 0;
  if (!compare_swap(header().reconcile_lock, expected, kHeld | me))
    locked = lock_raw(header().reconcile_lock, me, wait);
  if (!locked) return locked;
  Status result = success();
  Reconciler::Unfinished unfinished;
  bool starved = false;  // this process has no memory to do it: another may
  try {
    result = repeat_passes(me, wait, unfinished);
  } catch (const std::bad_alloc&) {
    starved = true;
  }
  add(header().reconciles, std::uint64_t{1});
  unlock(header().reconcile_lock);
  // Killed from here on, this process leaves blocks that it was writing, like any other.
  for (const BlockRef& ref : unfinished) give_up_unfinished(ref);
  // What was released while `dirty` kept its releasers from looking is on the deferred-free lists.
  if (load_full(header().deferred_hint) != 0 && try_lock_blocks()) unlock_blocks();
  notify_all(header().space);
  if (starved) throw std::bad_alloc();
  return result;
}

Status Arena::repeat_passes(Identity me, const WaitContext& wait, std::vector<BlockRef>& unfinished) {
  for (int pass = 0; pass < kMostPasses; ++pass) {
    std::uint32_t epoch = load_acquire(header().dirty);
    if (epoch == 0) break;
    Reconciler reconciler(*this, me, wait, unfinished);
    auto done = reconciler.run();
    if (!done) return std::move(done).error();
    if (*done) compare_swap(header().dirty, epoch, 0u);  // cleared last; a death found meanwhile leaves it set
  }
  return success();
}

void Reconciler::mark(BlockRef ref) noexcept {
  if (!arena_.geometry().contains(ref.id)) return;
  auto& marks = marked_[ref.id.size_class() - kMinClass];
  const BlockEntry* entry = arena_.entry(ref.id);
  if (ref.id.index() >= marks.size() || entry == nullptr) return;
  if (generation_of_block(load_acquire(entry->word)) == ref.generation) marks[ref.id.index()] = 1;
}

template <class Visit>
void Reconciler::for_each(Visit visit) noexcept {
  for (unsigned k = kMinClass; k <= arena_.geometry().max_class(); ++k) {
    const std::uint64_t high = arena_.walked_entries(k);
    for (std::uint64_t index = 0; index < high; ++index) {
      const BlockId id = BlockId::make(k, index);
      if (BlockEntry* entry = arena_.entry(id)) visit(id, *entry);
    }
  }
}

Result<bool> Reconciler::run() {
  Status marks = restore_marks();
  if (!marks) return std::move(marks).error();
  find_dead();
  if (!map_tables()) return no_address_space();
  note_words();
  Status walked = walk_channels();
  if (!walked) return std::move(walked).error();
  Status locked = lock(arena_.header().arena_lock);
  if (!locked) return std::move(locked).error();
  const bool done = rebuild();
  arena_.unlock_blocks();
  if (unmapped_) return no_address_space();
  return done;
}

// What cannot be looked at must not be taken for absent: the pass gives nothing up.
Error Reconciler::no_address_space() {
  return Error{Code::kOutOfSharedMemory, "no address space left to map what a recovery has to look at"};
}

bool Reconciler::map_tables() noexcept {
  constexpr std::uint64_t kStep = 512;  // less than what is mapped at once
  for (unsigned k = kMinClass; k <= arena_.geometry().max_class(); ++k) {
    const std::uint64_t high = arena_.used_entries(k);
    for (std::uint64_t index = 0; index < high; index += kStep) {
      if (arena_.entry(BlockId::make(k, index)) == nullptr) return false;
    }
    if (high != 0 && arena_.entry(BlockId::make(k, high - 1)) == nullptr) return false;
  }
  return true;
}

// The high-water marks bound every walk, so they come first. What is true of them is in the file: an entry has a page
// before it is used, and a word from then on.
Status Reconciler::restore_marks() {
  Status locked = lock(arena_.header().arena_lock);
  if (!locked) return locked;
  const Geometry& geometry = arena_.geometry();
  for (unsigned k = kMinClass; k <= geometry.max_class(); ++k) {
    ClassState& state = arena_.header().classes[k - kMinClass];
    const std::uint64_t bytes =
        pages_from(arena_.fd(), geometry.table_offset(k, 0), geometry.count(k) * sizeof(BlockEntry));
    // The last entry may lie across into a page that nobody has touched; its word is in the first of its pages.
    const std::uint64_t present = round_up(bytes, sizeof(BlockEntry)) / sizeof(BlockEntry);
    std::uint64_t high = present;
    while (high > 0) {
      const BlockEntry* entry = arena_.entry(BlockId::make(k, high - 1));
      if (entry == nullptr || load_relaxed(entry->word) != 0 || load_relaxed(entry->committed) != 0) break;
      --high;
    }
    if (load_relaxed(state.high) != high) store_relaxed(state.high, high);
    if (load_relaxed(state.table_committed) > present) store_relaxed(state.table_committed, present);
  }
  arena_.unlock(arena_.header().arena_lock);
  return success();
}

// A slot counts as dead only if nobody has its lock while neither generation nor status move: a newcomer takes the lock
// first, and one that takes a dead participant's slot says so in the status and holds nothing yet.
void Reconciler::find_dead() noexcept {
  const std::uint32_t high = std::min(load_acquire(arena_.header().participants_high), kMaxParticipants);
  for (std::uint32_t slot = 0; slot < high; ++slot) {
    const Participant& other = arena_.participant(slot);
    const std::uint32_t status = load_acquire(other.status);
    const std::uint32_t generation = load_acquire(other.generation);
    const bool locked = byte_is_locked(arena_.fd(), slot);
    generations_[slot] = generation;
    if (load_acquire(other.generation) != generation || load_acquire(other.status) != status) {
      arena_.mark_dirty();  // it changes hands: the next pass sees who has it
      continue;
    }
    written_by_nobody_[slot] = !locked;
    const bool stale = status == static_cast<std::uint32_t>(ParticipantStatus::kStale);
    if (status == static_cast<std::uint32_t>(ParticipantStatus::kFree) || (locked && !stale)) continue;
    dead_[slot] = true;
    killed_[slot] = status != static_cast<std::uint32_t>(ParticipantStatus::kDetached);
    dead_status_[slot] = status;
    dead_mask_[slot / 64] |= std::uint64_t{1} << (slot % 64);
  }
}

// Whether the writer was dead when the pass began. One that died since may have published the block after its channel
// was walked; its own death brings the next pass.
bool Reconciler::is_dead_writer(Identity writer) const noexcept {
  const std::uint32_t slot = slot_of(writer);
  const std::uint32_t newer = (generation_of(writer) - generations_[slot]) & 0xfffffu;
  if (newer == 0) return written_by_nobody_[slot];
  // An owner of the slot that came after the look; or one before, or bits that no participant wrote.
  return newer > kMaxParticipants;
}

void Reconciler::note_words() {
  for (unsigned k = kMinClass; k <= arena_.geometry().max_class(); ++k) {
    const std::uint64_t high = arena_.walked_entries(k);
    words_[k - kMinClass].resize(high);
    marked_[k - kMinClass].assign(high, 0);
  }
  std::size_t unfinished = 0;
  for_each([&](BlockId id, BlockEntry& entry) {
    auto& words = words_[id.size_class() - kMinClass];
    if (id.index() >= words.size()) return;
    const std::uint64_t word = words[id.index()] = load_acquire(entry.word);
    if (state_of(word) == BlockState::kWriting && is_dead_writer(writer_of(word))) ++unfinished;
  });
  unfinished_.reserve(unfinished_.size() + unfinished);  // rebuild() may not allocate
}

Status Reconciler::walk_channels() {
  for (unsigned k = kMinClass; k <= arena_.geometry().max_class(); ++k) {
    for (std::uint64_t index = 0; index < words_[k - kMinClass].size(); ++index) {
      const std::uint64_t word = words_[k - kMinClass][index];
      const BlockId id = BlockId::make(k, index);
      const BlockEntry* entry = arena_.entry(id);
      if (state_of(word) != BlockState::kLive || entry == nullptr ||
          load_relaxed(entry->kind) != static_cast<std::uint32_t>(BlockKind::kChannel)) {
        continue;
      }
      const BlockRef channel{id, generation_of_block(word)};
      bool held = false;
      for (std::uint32_t i = 0; i < kParticipantWords; ++i)
        held |= (load_full(entry->holders.words[i]) & ~dead_mask_[i]) != 0;
      if (!held && (g_grants == nullptr || !g_grants(arena_, channel))) {
        abandoned_channels_.push_back(channel);
        continue;
      }
      // Without the walker nothing can be said about what the channel keeps, and nothing may be given up.
      if (g_walker == nullptr) return Error{Code::kInvalid, "channels cannot be recovered: no walker was set"};
      mark(channel);
      g_walker(arena_, channel, *this);
      if (!failed_) return failed_;
      if (unmapped_) return no_address_space();
    }
  }
  return success();
}

bool Reconciler::is_candidate(unsigned size_class, std::uint64_t index, const BlockEntry& entry) const noexcept {
  const auto& words = words_[size_class - kMinClass];
  const std::uint64_t word = load_acquire(entry.word);
  return index < words.size() && words[index] == word && state_of(word) == BlockState::kLive &&
         marked_[size_class - kMinClass][index] == 0;
}

bool Reconciler::abandoned_channel_was_opened() noexcept {
  for (const BlockRef& channel : abandoned_channels_) {
    const BlockEntry* entry = arena_.entry(channel.id);
    for (std::uint32_t i = 0; i < kParticipantWords; ++i) {
      if ((load_full(entry->holders.words[i]) & ~dead_mask_[i]) != 0) return true;
    }
  }
  return false;
}

// Under the arena lock. Everything up to the freeing only recomputes what the truth says, so a kill anywhere leaves a
// state from which the next pass computes the same.
bool Reconciler::rebuild() noexcept {
  if (abandoned_channel_was_opened()) return false;
  if (!map_tables()) {  // there may be more than when they were noted
    unmapped_ = true;
    return false;
  }
  for_each([this](BlockId id, BlockEntry& entry) {
    forget_dead_in(id, entry);
    const std::uint64_t most = std::uint64_t{1} << id.size_class();
    if (load_relaxed(entry.committed) > most) store_relaxed(entry.committed, most);
    store_relaxed(entry.refcount, 0u);
  });
  count_refs();
  if (unmapped_) return false;
  rebuild_lists();
  free_candidates();
  store_release(arena_.header().garbage, 0u);
  const std::uint32_t slots = std::min(load_acquire(arena_.header().participants_high), kMaxParticipants);
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    Participant& other = arena_.participant(slot);
    if (load_relaxed(other.deferred_overflow) != 0) store_relaxed(other.deferred_overflow, 0u);
    if (!dead_[slot]) continue;
    const bool stale = dead_status_[slot] == static_cast<std::uint32_t>(ParticipantStatus::kStale);
    std::uint32_t status = dead_status_[slot];
    compare_swap(other.status, status,
                 static_cast<std::uint32_t>(stale ? ParticipantStatus::kAttached : ParticipantStatus::kFree));
  }
  arena_.run_deferred_frees();
  return true;
}

void Reconciler::forget_dead_in(BlockId id, BlockEntry& entry) noexcept {
  for (std::uint32_t i = 0; i < kParticipantWords; ++i) {
    const std::uint64_t mask = dead_mask_[i];
    if (mask != 0 && (load_relaxed(entry.holders.words[i]) & mask) != 0) clear_bits(entry.holders.words[i], mask);
  }
  const auto& words = words_[id.size_class() - kMinClass];
  std::uint64_t word = load_acquire(entry.word);
  if (state_of(word) != BlockState::kWriting || id.index() >= words.size() || words[id.index()] != word) return;
  if (!is_dead_writer(writer_of(word))) return;
  const std::uint32_t generation = generation_of_block(word);
  if (marked_[id.size_class() - kMinClass][id.index()] != 0) {  // a message like any other
    compare_swap(entry.word, word, block_word(BlockState::kLive, kNobody, generation));
    return;
  }
  // Nobody will ever finish it. It may have been killed between raising `committed` and the pages, or between the pages
  // and lowering it, so this process takes the block over and gives all of its pages back, outside the locks.
  if (unfinished_.size() == unfinished_.capacity()) return;  // a damaged word: the next pass has counted it
  store_relaxed(entry.list_length, 0u);
  if (compare_swap(entry.word, word, block_word(BlockState::kWriting, me_, generation))) {
    unfinished_.push_back(BlockRef{id, generation});
  }
}

void Reconciler::count_refs() noexcept {
  for_each([this](BlockId id, BlockEntry& entry) {
    if (state_of(load_acquire(entry.word)) == BlockState::kFree) return;
    if (load_acquire(entry.list_length) != 0 && arena_.address(id) == nullptr) unmapped_ = true;
    for (const ListEntry& item : arena_.references_of(id, entry)) {
      const BlockRef ref = ref_of(item);
      if (ref.id != id && arena_.is_current(ref)) add(arena_.entry(ref.id)->refcount, 1u);
    }
  });
}

void Reconciler::rebuild_lists() noexcept {
  ArenaHeader& header = arena_.header();
  std::uint64_t committed_bytes = 0, used = 0, held = 0;
  for (unsigned k = kMinClass; k <= arena_.geometry().max_class(); ++k) {
    store_relaxed(header.classes[k - kMinClass].warm, std::uint64_t{0});
    store_relaxed(header.classes[k - kMinClass].cold, std::uint64_t{0});
  }
  // A new count of held bytes: see Arena::count_held, which goes on meanwhile.
  const std::uint32_t epoch = (held_epoch(load_acquire(header.held_bytes)) + 1) & 0xffff;
  exchange_full(header.held_bytes, std::uint64_t{epoch} << 48);
  for_each([&](BlockId id, BlockEntry& entry) {
    const std::uint64_t committed = load_relaxed(entry.committed);
    committed_bytes += committed;
    if (state_of(load_acquire(entry.word)) == BlockState::kFree) {
      ClassState& state = header.classes[id.size_class() - kMinClass];
      std::atomic<std::uint64_t>& list = committed != 0 ? state.warm : state.cold;
      store_relaxed(entry.next_free, load_relaxed(list));
      store_relaxed(list, id.index() + 1);
      return;
    }
    used += committed;
    held += recount_held(entry, epoch);
  });
  store_release(header.committed_bytes, committed_bytes);
  add(header.held_bytes, held);
  arena_.note_usage(used);
}

// The bytes that a block adds to the new count: those of one counted before, or of a kind that never enters a queue.
std::uint64_t Reconciler::recount_held(BlockEntry& entry, std::uint32_t epoch) noexcept {
  const bool never_queued = load_relaxed(entry.kind) != static_cast<std::uint32_t>(BlockKind::kMessage);
  std::uint32_t flags = load_acquire(entry.flags);
  for (;;) {
    const bool counted = (flags & kCountedHeld) != 0;
    if ((!counted && !never_queued) || (counted && flags >> 16 == epoch)) return 0;
    if (compare_swap(entry.flags, flags, counted_in(flags, epoch))) return load_relaxed(entry.committed);
  }
}

void Reconciler::free_candidates() noexcept {
  for_each([this](BlockId id, BlockEntry& entry) {
    if (!is_candidate(id.size_class(), id.index(), entry)) return;
    clear_bits(entry.flags, std::uint32_t{kDelivered});  // no record names it
    const BlockRef ref{id, generation_of_block(load_relaxed(entry.word))};
    if (load_relaxed(entry.kind) == static_cast<std::uint32_t>(BlockKind::kChannel) && !arena_.is_referenced(entry)) {
      arena_.free_block(id, entry);
    } else {
      arena_.free_if_unreferenced(ref);
    }
  });
}

}  // namespace shmtree::memory
