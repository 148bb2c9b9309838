#include "memory/block_pool.h"

#include <algorithm>

#include "memory/held_locks.h"
#include "platform/clock.h"
#include "platform/dcheck.h"
#include "platform/file.h"

namespace shmtree::memory {

using namespace platform;

namespace {

constexpr std::uint64_t kMinIdleBytes = 64u << 20;  // free pages that are always worth keeping
constexpr std::int64_t kPeakWindowNs = 10'000'000'000;
constexpr std::uint64_t kRestBytes = 2u << 20;  // about twice the second-level cache of a core

// Returns the length that the resting queue of a class should have.
constexpr std::uint64_t resting_blocks(unsigned size_class) noexcept {
  return std::max<std::uint64_t>(kRestBytes >> size_class, 1);
}

}  // namespace

std::uint64_t BlockPool::idle_bytes() const noexcept {
  const std::uint64_t used = used_bytes();
  return std::max(committed_bytes(), used) - used;
}

std::uint64_t BlockPool::excess_bytes() const noexcept {
  const std::uint64_t idle = idle_bytes();
  if (idle <= kMinIdleBytes) return 0;
  const std::uint64_t keep =
      std::max({kMinIdleBytes, load_relaxed(header_.peak_used[0]), load_relaxed(header_.peak_used[1])});
  return idle - std::min(idle, keep);
}

Status BlockPool::ensure_table(unsigned size_class) {
  SHMTREE_DCHECK(!HeldLocks::contains(header_.arena_lock));
  ClassState& state = header_.class_state(size_class);
  const Geometry& geometry = table_.geometry();
  const std::uint64_t have = load_acquire(state.table_committed);
  const std::uint64_t count = geometry.count(size_class);
  if (have >= count || load_acquire(state.high) + kTableStep / 2 < have) return success();
  const std::uint64_t want = std::min(have + kTableStep, count);
  const std::uint64_t from = geometry.table_offset(size_class, have);
  const auto file = mapping_.file().get("cannot extend the block table of an arena");
  if (!file) return file.error();
  Status committed = commit_pages(*file, from, geometry.table_offset(size_class, want) - from);
  if (!committed) return committed;
  std::uint64_t now = have;
  while (now < want && !compare_swap(state.table_committed, now, want)) {
  }
  return success();
}

void BlockPool::note_usage(std::uint64_t used) noexcept {
  store_release(header_.used_bytes, used);
  const std::int64_t window = coarse_monotonic_ns() / kPeakWindowNs;
  const std::int64_t last = load_relaxed(header_.peak_window);
  if (window != last) {
    store_relaxed(header_.peak_used[1], window - 1 == last ? load_relaxed(header_.peak_used[0]) : used);
    store_relaxed(header_.peak_used[0], used);
    store_relaxed(header_.peak_window, window);
  } else if (used > load_relaxed(header_.peak_used[0])) {
    store_relaxed(header_.peak_used[0], used);
  }
}

// Returns the entry that a free list names by index + 1. Null, after a request for a recovery, if the list is damaged;
// null without one if there is no address space left.
BlockEntry* BlockPool::free_entry(unsigned size_class, std::uint64_t position) noexcept {
  if (position - 1 < table_.used_entries(size_class)) {  // wraps for 0, the end of a list
    BlockEntry* block = mapping_.entry(BlockId::make(size_class, position - 1));
    if (block == nullptr) return nullptr;
    if (state_of(load_relaxed(block->word)) == BlockState::kFree &&
        load_relaxed(block->committed) <= std::uint64_t{1} << size_class) {
      return block;
    }
  }
  request_recovery(header_);
  return nullptr;
}

// Returns the entry of a block that was never used. Null as for free_entry().
BlockEntry* BlockPool::next_entry(unsigned size_class, std::uint64_t position) noexcept {
  BlockEntry* block = nullptr;
  if (position - 1 < table_.geometry().count(size_class)) {  // otherwise the mark is damaged
    block = mapping_.entry(BlockId::make(size_class, position - 1));
    if (block == nullptr || load_relaxed(block->word) == 0) return block;  // else it was used: the mark is damaged
  }
  request_recovery(header_);
  return nullptr;
}

bool BlockPool::wants_to_grow(unsigned size_class) const noexcept {
  const ClassState& state = header_.class_state(size_class);
  const std::uint64_t resting = load_relaxed(state.resting_count);
  return resting != 0 && resting < resting_blocks(size_class) && load_relaxed(state.warm) == 0;
}

// Prefers blocks without pages to resting ones until the class has enough resting blocks. The growth stops when all
// classes together have committed a quarter of the budget.
BlockPool::From BlockPool::choose(const ClassState& state, unsigned size_class, std::uint64_t need,
                                  bool may_grow) const noexcept {
  const std::uint64_t resting = load_relaxed(state.resting_count);
  if (resting >= resting_blocks(size_class)) return From::kResting;
  if (load_relaxed(state.warm) != 0) return From::kWarm;
  const bool grows = may_grow && load_relaxed(header_.committed_bytes) + need <= max_bytes() / 4;
  if (resting != 0 && !grows) return From::kResting;
  return load_relaxed(state.cold) != 0 ? From::kCold : From::kUnused;
}

BlockPool::Candidate BlockPool::candidate(const ClassState& state, unsigned size_class, From from) noexcept {
  const auto at = [&]() -> std::uint64_t {
    switch (from) {
      case From::kResting: return load_relaxed(state.resting_first);
      case From::kWarm: return load_relaxed(state.warm);
      case From::kCold: return load_relaxed(state.cold);
      case From::kUnused: return load_relaxed(state.high) + 1;
    }
    return 0;
  };
  const std::uint64_t position = at();
  return {from, BlockId::make(size_class, position - 1),
          from == From::kUnused ? next_entry(size_class, position) : free_entry(size_class, position)};
}

// Removes the candidate from its list.
void BlockPool::remove(ClassState& state, const Candidate& first) noexcept {
  const std::uint64_t next = load_relaxed(first.block->next_free);
  switch (first.from) {
    case From::kResting:
      store_relaxed(state.resting_first, next);
      if (next == 0) store_relaxed(state.resting_last, std::uint64_t{0});
      store_relaxed(state.resting_count, load_relaxed(state.resting_count) - 1);
      break;
    case From::kWarm: store_relaxed(state.warm, next); break;
    case From::kCold: store_relaxed(state.cold, next); break;
    case From::kUnused: store_relaxed(state.high, first.id.index() + 1); break;
  }
}

BlockPool::Taken BlockPool::take(unsigned size_class, std::uint64_t need, std::uint64_t bytes, BlockKind kind,
                                 Identity me, bool may_grow) noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header_.arena_lock) && me != kNoIdentity);
  SHMTREE_DCHECK(bytes <= need && need <= std::uint64_t{1} << size_class);
  Taken taken;
  ClassState& state = header_.class_state(size_class);
  const From from = choose(state, size_class, need, may_grow);
  // Blocks are more than half full, so the budget is used up before the offsets of a class are. This fails only if the
  // table is not committed far enough.
  if (from == From::kUnused && load_relaxed(state.high) + 1 > load_relaxed(state.table_committed)) return taken;
  const Candidate first = candidate(state, size_class, from);
  const BlockId id = first.id;
  BlockEntry* const block = first.block;
  if (block == nullptr && needs_recovery(header_)) return taken;  // the next lock repairs it
  std::byte* data = block == nullptr ? nullptr : mapping_.address(id);
  if (data == nullptr) {
    taken.unmapped = true;
    return taken;
  }
  taken.had = committed_of(*block, size_class);
  const std::uint64_t more = need > taken.had ? need - taken.had : 0;
  const std::uint64_t committed = load_relaxed(header_.committed_bytes) + more;
  if (committed > max_bytes()) return taken;

  remove(state, first);
  taken.ref = BlockRef{id, next_generation(load_relaxed(block->word))};
  store_release(block->word, block_word(BlockState::kWriting, me, taken.ref.generation));
  store_relaxed(block->size, bytes);
  store_relaxed(block->list_length, 0u);
  store_relaxed(block->refcount, 0u);
  store_relaxed(block->kind, static_cast<std::uint32_t>(kind));
  store_relaxed(block->flags, 0u);
  store_relaxed(block->since_ns, coarse_monotonic_ns());
  store_release(block->committed, taken.had + more);
  store_relaxed(header_.committed_bytes, committed);
  if (kind != BlockKind::kMessage) held_.count(*block);  // it never enters a queue
  note_usage(load_relaxed(header_.used_bytes) + taken.had + more);
  taken.data = data;
  return taken;
}

// Stores the word after the other fields. If the process is killed before that store, the block still counts as in use.
void BlockPool::put(BlockId id, BlockEntry& block) noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header_.arena_lock) && &block == table_.entry(id));
  std::uint64_t committed = committed_of(block, id.size_class());
  const std::uint64_t used = load_relaxed(header_.used_bytes);
  const bool was_held = (load_relaxed(block.flags) & kCountedHeld) != 0;
  held_.uncount(block, committed);
  note_usage(used - std::min(used, committed));
  if ((load_relaxed(block.flags) & kTrimmed) != 0) {
    const std::uint64_t keep = std::min(load_relaxed(block.size), committed);
    store_relaxed(header_.committed_bytes, load_relaxed(header_.committed_bytes) - (committed - keep));
    store_relaxed(block.committed, keep);
    committed = keep;
  }
  store_relaxed(block.flags, 0u);
  store_release(block.word, block_word(BlockState::kFree, kNoIdentity, generation_of_block(load_relaxed(block.word))));
  if (was_held && committed != 0) {
    rest(id, block);
  } else {
    push(id, block, committed);
  }
  store_relaxed(header_.frees, load_relaxed(header_.frees) + 1);
  store_relaxed(header_.class_state(id.size_class()).last_freed, load_relaxed(header_.frees));
  store_relaxed(header_.freed, 1u);
}

void BlockPool::push(BlockId id, BlockEntry& block, std::uint64_t committed) noexcept {
  ClassState& state = header_.class_state(id.size_class());
  std::atomic<std::uint64_t>& list = committed != 0 ? state.warm : state.cold;
  store_relaxed(block.next_free, load_relaxed(list));
  store_relaxed(list, id.index() + 1);
}

// Appends the block to the resting queue. Moves the oldest to `warm` if the queue is too long.
void BlockPool::rest(BlockId id, BlockEntry& block) noexcept {
  const unsigned size_class = id.size_class();
  ClassState& state = header_.class_state(size_class);
  const std::uint64_t position = id.index() + 1;
  if (load_relaxed(state.resting_first) == 0) {
    store_relaxed(state.resting_first, position);
  } else {
    BlockEntry* const last = free_entry(size_class, load_relaxed(state.resting_last));
    if (last == nullptr) return push(id, block, kPageBytes);
    store_relaxed(last->next_free, position);
  }
  store_relaxed(block.next_free, std::uint64_t{0});
  store_relaxed(state.resting_last, position);
  store_relaxed(state.resting_count, load_relaxed(state.resting_count) + 1);
  if (load_relaxed(state.resting_count) <= resting_blocks(size_class)) return;
  const Candidate first = candidate(state, size_class, From::kResting);
  if (first.block == nullptr) return;
  remove(state, first);
  push(first.id, *first.block, kPageBytes);
}

// Returns the class in which the last free was the longest ago, among the classes with free pages. Returns null if
// there is none.
ClassState* BlockPool::least_recently_used() noexcept {
  ClassState* oldest = nullptr;
  for (unsigned k = kMinClass; k <= table_.geometry().max_class(); ++k) {
    ClassState& state = header_.class_state(k);
    if (load_relaxed(state.warm) == 0 && load_relaxed(state.resting_first) == 0) continue;
    if (oldest == nullptr || load_relaxed(state.last_freed) < load_relaxed(oldest->last_freed)) oldest = &state;
  }
  return oldest;
}

std::size_t BlockPool::take_victims(std::uint64_t want, Identity me, Victim* victims) noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header_.arena_lock) && me != kNoIdentity);
  std::size_t count = 0;
  ClassState* state = nullptr;
  while (want != 0 && count < kMaxVictims && (state = least_recently_used()) != nullptr) {
    const unsigned size_class = kMinClass + static_cast<unsigned>(state - header_.classes);
    const Candidate first =
        candidate(*state, size_class, load_relaxed(state->warm) != 0 ? From::kWarm : From::kResting);
    BlockEntry* const block = first.block;
    if (block == nullptr) return count;
    remove(*state, first);
    const std::uint64_t committed = committed_of(*block, size_class);
    const std::uint64_t bytes = std::min(committed, table_.geometry().round_to_pages(std::min(want, committed)));
    const std::uint32_t generation = next_generation(load_relaxed(block->word));
    store_release(block->word, block_word(BlockState::kWriting, me, generation));
    store_relaxed(block->flags, 0u);
    store_relaxed(block->list_length, 0u);
    store_relaxed(block->refcount, 0u);
    // The victim counts as used until it is put back, but not in note_usage(), which records how much memory messages
    // need.
    store_release(header_.used_bytes, load_relaxed(header_.used_bytes) + committed);
    SHMTREE_DCHECK(bytes <= committed && committed <= std::uint64_t{1} << size_class);
    victims[count++] = Victim{{first.id, generation}, committed - bytes, bytes};
    want -= std::min(want, bytes);
  }
  return count;
}

// Rebuilds the marks from the file: an entry has a page before it is used, and a word that is not 0 from then on.
void BlockPool::restore_marks() noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header_.arena_lock));
  for (unsigned k = kMinClass; k <= table_.geometry().max_class(); ++k) {
    ClassState& state = header_.class_state(k);
    const std::uint64_t present = table_.present_entries(k);
    std::uint64_t high = present;
    while (high > 0) {
      const BlockEntry* block = table_.entry(BlockId::make(k, high - 1));
      if (block == nullptr || load_relaxed(block->word) != 0 || load_relaxed(block->committed) != 0) break;
      --high;
    }
    if (load_relaxed(state.high) != high) store_relaxed(state.high, high);
    if (load_relaxed(state.table_committed) > present) store_relaxed(state.table_committed, present);
  }
}

void BlockPool::rebuild() noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header_.arena_lock));
  std::uint64_t committed_bytes = 0, used = 0, held = 0;
  for (unsigned k = kMinClass; k <= table_.geometry().max_class(); ++k) {
    ClassState& state = header_.class_state(k);
    for (auto* list : {&state.cold, &state.warm, &state.resting_first, &state.resting_last, &state.resting_count})
      store_relaxed(*list, std::uint64_t{0});
  }
  const std::uint32_t epoch = held_.begin_recount();
  table_.for_each([&](BlockId id, BlockEntry& block) {
    const std::uint64_t committed = load_relaxed(block.committed);
    committed_bytes += committed;
    if (state_of(load_acquire(block.word)) == BlockState::kFree) return push(id, block, committed);
    used += committed;
    held += HeldBytes::recount(block, epoch);
  });
  store_release(header_.committed_bytes, committed_bytes);
  held_.end_recount(held);
  note_usage(used);
}

// --- HeldBytes

// Sets the flag, then adds to the sum. If a recount began in between, the epoch in the flags shows whether it has
// counted this block.
void HeldBytes::count(BlockEntry& block) noexcept {
  std::uint64_t held = load_acquire(sum_);
  std::uint32_t flags = load_relaxed(block.flags), counted;
  do {
    if ((flags & kCountedHeld) != 0) return;
    counted = counted_in(flags, held_epoch(held));
  } while (!compare_swap(block.flags, flags, counted));
  const std::uint64_t bytes = load_relaxed(block.committed);
  while (!compare_swap(sum_, held, held + bytes)) {
    const std::uint32_t old = counted >> 16;
    if (held_epoch(held) == old) continue;
    flags = load_acquire(block.flags);
    do {
      if (flags >> 16 != old) return;
      counted = counted_in(flags, held_epoch(held));
    } while (!compare_swap(block.flags, flags, counted));
  }
}

void HeldBytes::uncount(const BlockEntry& block, std::uint64_t committed) noexcept {
  const std::uint32_t flags = load_relaxed(block.flags);
  std::uint64_t held = load_acquire(sum_);
  do {
    if ((flags & kCountedHeld) == 0 || flags >> 16 != held_epoch(held)) return;
  } while (!compare_swap(sum_, held, held - std::min(committed, held & kHeldMask)));
}

std::uint32_t HeldBytes::begin_recount() noexcept {
  const std::uint32_t epoch = (held_epoch(load_acquire(sum_)) + 1) & 0xffff;
  exchange_seq_cst(sum_, std::uint64_t{epoch} << 48);
  return epoch;
}

// Counts a block in the new epoch if it was counted before, or is of a kind that never enters a queue. Returns its
// bytes; 0 if it does not count, or if another process has just counted it in that epoch.
std::uint64_t HeldBytes::recount(BlockEntry& block, std::uint32_t epoch) noexcept {
  SHMTREE_DCHECK(epoch <= 0xffff);
  const bool never_queued = !is_kind(block, BlockKind::kMessage);
  std::uint32_t flags = load_acquire(block.flags);
  for (;;) {
    const bool counted = (flags & kCountedHeld) != 0;
    if ((!counted && !never_queued) || (counted && flags >> 16 == epoch)) return 0;
    if (compare_swap(block.flags, flags, counted_in(flags, epoch))) return load_relaxed(block.committed);
  }
}

}  // namespace shmtree::memory
