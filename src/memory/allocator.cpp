// Blocks: where they come from, the pages behind them, and the budget that both are held to.
#include <algorithm>
#include <utility>

#include "memory/arena.h"
#include "memory/event.h"
#include "platform/atomics.h"
#include "platform/machine.h"

namespace shmtree::memory {

using namespace platform;

namespace {

constexpr std::uint64_t kTableStep = 1024;         // table entries whose pages are committed at a time
constexpr std::uint64_t kUnasked = 1u << 20;       // commits up to this size do not ask the machine first
constexpr std::uint64_t kKeptFree = 64u << 20;     // free pages that are always worth keeping
constexpr std::uint64_t kMostPunched = 64u << 20;  // by one call
constexpr std::int64_t kPeakWindowNs = 10'000'000'000;
constexpr std::int64_t kHoardPatienceNs = 1'000'000'000;

// True when the machine and its control groups can give `bytes` and keep a twentieth of what they have left.
bool machine_has(std::uint64_t bytes) {
  const std::uint64_t available = available_memory_bytes();
  return bytes <= available - available / 20;
}

std::string megabytes(std::uint64_t bytes) {
  return std::to_string(bytes) + " bytes";
}

}  // namespace

OwnedBlock& OwnedBlock::operator=(OwnedBlock&& other) noexcept {
  if (this != &other) {
    abandon();
    arena_ = std::exchange(other.arena_, nullptr);
    ref_ = other.ref_;
    writer_ = other.writer_;
    data_ = other.data_;
    bytes_ = other.bytes_;
    cold_ = other.cold_;
  }
  return *this;
}

void OwnedBlock::give_back() noexcept {
  Arena* arena = std::exchange(arena_, nullptr);
  BlockEntry* entry = arena->entry(ref_.id);
  // In a forked child the block is still the parent's.
  if (entry == nullptr || writer_ != arena->current_identity()) return;
  // Nobody else knows it, so it needs no walk, whatever it was to become.
  store_relaxed(entry->kind, static_cast<std::uint32_t>(BlockKind::kMessage));
  std::uint64_t word = block_word(BlockState::kWriting, writer_, ref_.generation);
  if (compare_swap(entry->word, word, block_word(BlockState::kLive, kNobody, ref_.generation))) arena->collect(ref_);
}

// Entries that were ever used, as far as the mark can be believed.
std::uint64_t Arena::used_entries(unsigned size_class) const noexcept {
  return std::min(load_acquire(header().classes[size_class - kMinClass].high), geometry().count(size_class));
}

// The same for walks: as far as the table is in the file, too. A read beyond would commit it.
std::uint64_t Arena::walked_entries(unsigned size_class) const noexcept {
  const std::uint64_t high = used_entries(size_class);
  if (high <= kTableStep) return high;
  const Geometry& known = geometry();
  const std::uint64_t bytes =
      pages_from(fd(), known.table_offset(size_class, 0), known.count(size_class) * sizeof(BlockEntry));
  return std::min(high, round_up(bytes, sizeof(BlockEntry)) / sizeof(BlockEntry));
}

// Under the arena lock: the entry that a free list names by index + 1. Null, with `dirty` set, when no free list that
// is in order names it: then it has to be rebuilt.
BlockEntry* Arena::free_entry(unsigned size_class, std::uint64_t place) noexcept {
  BlockEntry* block = nullptr;
  if (place - 1 < used_entries(size_class)) {  // 0 is what a list that was emptied meanwhile says
    block = mapping_->entry(BlockId::make(size_class, place - 1));
    if (block == nullptr) return nullptr;  // no address space
    if (state_of(load_relaxed(block->word)) == BlockState::kFree &&
        load_relaxed(block->committed) <= std::uint64_t{1} << size_class) {
      return block;
    }
  }
  mark_dirty();
  return nullptr;
}

std::uint64_t Arena::free_bytes() const noexcept {
  const std::uint64_t used = load_acquire(header().used_bytes);
  return used >= max_bytes() ? 0 : max_bytes() - used;
}

// The table pages of the next blocks of a class, committed before the arena lock is taken.
Status Arena::ensure_table(unsigned size_class) {
  ClassState& state = header().classes[size_class - kMinClass];
  const std::uint64_t have = load_acquire(state.table_committed);
  const std::uint64_t count = geometry().count(size_class);
  if (have >= count || load_acquire(state.high) + kTableStep / 2 < have) return success();
  const std::uint64_t want = std::min(have + kTableStep, count);
  const std::uint64_t from = geometry().table_offset(size_class, have) / kPageBytes * kPageBytes;
  Status committed = commit_pages(fd(), from, geometry().table_offset(size_class, want) - from);
  if (!committed) return committed;
  std::uint64_t now = have;
  while (now < want && !compare_swap(state.table_committed, now, want)) {
  }
  return success();
}

void Arena::note_usage(std::uint64_t used) noexcept {
  store_release(header().used_bytes, used);
  const std::int64_t window = coarse_monotonic_ns() / kPeakWindowNs;
  const std::int64_t last = load_relaxed(header().peak_window);
  if (window != last) {
    store_relaxed(header().peak_used[1], window - 1 == last ? load_relaxed(header().peak_used[0]) : used);
    store_relaxed(header().peak_used[0], used);
    store_relaxed(header().peak_window, window);
  } else if (used > load_relaxed(header().peak_used[0])) {
    store_relaxed(header().peak_used[0], used);
  }
}

// Under the arena lock: picks a block and raises its `committed`. A block that is not valid when the budget has no room
// for its pages, or when there is no address space to map it.
OwnedBlock Arena::take_block(unsigned size_class, std::uint64_t need, std::uint64_t bytes, BlockKind kind, Identity me,
                             Taken* taken) noexcept {
  ArenaHeader& head = header();
  ClassState& state = head.classes[size_class - kMinClass];
  std::atomic<std::uint64_t>* from = load_relaxed(state.warm) != 0 ? &state.warm : &state.cold;
  std::uint64_t index = load_relaxed(*from);
  const bool fresh = index == 0;
  if (fresh) {
    index = load_relaxed(state.high) + 1;
    // Offsets outlast the budget (blocks are more than half full), so only a table not yet committed ends here.
    if (index > load_relaxed(state.table_committed)) return OwnedBlock{};
    if (index - 1 >= geometry().count(size_class)) return mark_dirty(), OwnedBlock{};  // the mark was damaged
  }
  const BlockId id = BlockId::make(size_class, index - 1);
  BlockEntry* block = fresh ? entry(id) : free_entry(size_class, index);
  if (fresh && block != nullptr && load_relaxed(block->word) != 0) {  // used before, says who knows
    mark_dirty();
    block = nullptr;
  }
  if (block == nullptr && dirty()) return OwnedBlock{};  // the next lock repairs it
  std::byte* data = block == nullptr ? nullptr : address(id);
  if (data == nullptr) {
    taken->unmapped = true;
    return OwnedBlock{};
  }
  const std::uint64_t had = taken->had = committed_of(*block, size_class);
  const std::uint64_t more = need > had ? need - had : 0;
  const std::uint64_t committed = load_relaxed(head.committed_bytes) + more;
  if (committed > max_bytes()) return OwnedBlock{};

  if (fresh) {
    store_relaxed(state.high, index);
  } else {
    store_relaxed(*from, load_relaxed(block->next_free));
  }
  const std::uint32_t generation = (generation_of_block(load_relaxed(block->word)) + 1) & kBlockGenerationMask;
  store_release(block->word, block_word(BlockState::kWriting, me, generation));
  store_relaxed(block->size, bytes);
  store_relaxed(block->list_length, 0u);
  store_relaxed(block->refcount, 0u);
  store_relaxed(block->kind, static_cast<std::uint32_t>(kind));
  const bool never_queued = kind != BlockKind::kMessage;
  store_relaxed(block->flags, 0u);
  store_relaxed(block->since_ns, coarse_monotonic_ns());
  store_release(block->committed, had + more);
  store_relaxed(head.committed_bytes, committed);
  if (never_queued) count_held(*block);
  note_usage(load_relaxed(head.used_bytes) + had + more);

  OwnedBlock owned;
  owned.arena_ = this;
  owned.ref_ = BlockRef{id, generation};
  owned.writer_ = me;
  owned.data_ = data;
  owned.bytes_ = bytes;
  owned.cold_ = more != 0;
  return owned;
}

// Allocates the pages that `committed` already counts. On failure the count is taken back with the block.
Status Arena::commit_block(OwnedBlock& block, std::uint64_t had, std::uint64_t need, const WaitContext& wait) {
  if (need <= had) return success();
  const BlockingScope blocking(need - had > kUnasked ? wait.hooks : nullptr);
  const int failure = try_commit_pages(fd(), geometry().data_offset(block.ref().id) + had, need - had);
  if (failure == 0) return success();
  block.arena_ = nullptr;
  give_back(block.ref(), had, need - had);  // first of all: there may be no memory for the message either
  Error error = os_error("the system has no memory for a block of " + megabytes(need), failure);
  error.code = Code::kOutOfSharedMemory;
  return error;
}

// Punches `bytes` from `keep` on out of a block that this process is writing, and frees it. The counts are put right
// with that, under the arena lock: a reconcile must not meet them half changed. False when the system kept the pages:
// they stay counted.
bool Arena::give_back(BlockRef ref, std::uint64_t keep, std::uint64_t bytes) noexcept {
  BlockEntry& block = *entry(ref.id);
  const bool given = release_pages(fd(), geometry().data_offset(ref.id) + keep, bytes);
  if (!given) keep += bytes;
  store_relaxed(block.size, keep);
  store_relaxed(block.kind, static_cast<std::uint32_t>(BlockKind::kMessage));
  set_bits(block.flags, std::uint32_t{kTrimmed});
  store_release(block.word, block_word(BlockState::kLive, kNobody, ref.generation));
  collect(ref);
  return given;
}

// One attempt: a block; or one that is not valid when there is no room now.
Result<OwnedBlock> Arena::try_allocate(std::uint64_t bytes, BlockKind kind, Identity me, const WaitContext& wait,
                                       bool* short_of_machine) {
  const unsigned size_class = Geometry::class_for(bytes);
  const std::uint64_t need = round_up(std::max<std::uint64_t>(bytes, 1), kPageBytes);
  for (int attempt = 0; attempt < 3; ++attempt) {
    Status table = ensure_table(size_class);
    if (!table) return std::move(table).error();
    if (need > kUnasked) {
      // Pages that are free within the arena need not come from the machine; which of them will be used is not known
      // before the lock, so the question is asked for the worst case.
      const std::uint64_t used = load_acquire(header().used_bytes);
      const std::uint64_t idle = std::max(load_acquire(header().committed_bytes), used) - used;
      if (need > idle && !machine_has(need - idle) && (evict(need, &wait) == 0 || !machine_has(need))) {
        *short_of_machine = true;
        return OwnedBlock{};
      }
    }
    Status locked = lock_blocks(wait);
    if (!locked) return std::move(locked).error();
    Taken taken;
    OwnedBlock block = take_block(size_class, need, bytes, kind, me, &taken);
    const std::uint64_t committed = load_relaxed(header().committed_bytes);
    unlock_blocks();
    if (taken.unmapped) {
      return Error{Code::kOutOfSharedMemory, "no address space left to map a block of " + megabytes(need)};
    }
    if (block.valid()) {
      Status pages = commit_block(block, taken.had, need, wait);
      if (!pages) return std::move(pages).error();
      return block;
    }
    const std::uint64_t over = committed + need > max_bytes() ? committed + need - max_bytes() : 0;
    if (over == 0) continue;  // the table was not long enough
    if (evict(over, &wait) == 0) break;
  }
  return OwnedBlock{};
}

// More than the budget is never in use: such counts were damaged, and would refuse every block until a reconcile.
bool Arena::counts_are_possible() const noexcept {
  return load_acquire(header().committed_bytes) <= max_bytes() && load_acquire(header().used_bytes) <= max_bytes();
}

Result<OwnedBlock> Arena::allocate(std::uint64_t bytes, BlockKind kind, const WaitContext& wait) {
  auto me = identity();
  if (!me) return std::move(me).error();
  if (bytes > max_bytes()) {
    return Error{Code::kMessageTooLarge, "a message of " + megabytes(bytes) + " is over the arena's budget of " +
                                             megabytes(max_bytes()) + " (max_bytes)"};
  }
  EventWait waiting(header().space, wait);
  std::int64_t hoarded_since = 0;
  bool repaired_now = false;  // since the last sleep: what is marked again at once must not keep the call from ending
  for (bool looked = false;; looked = true) {
    if (looked) waiting.arm();
    bool short_of_machine = false;
    auto block = try_allocate(bytes, kind, *me, wait, &short_of_machine);
    if (!block || block->valid()) return block;
    if (!looked && !counts_are_possible()) mark_dirty();
    if (!repaired_now && check_participants(looked ? 250'000'000 : 5'000'000)) {
      Status repaired = reconcile(wait);
      if (!repaired) return std::move(repaired).error();
      repaired_now = true;
      continue;
    }
    const std::uint64_t used = load_acquire(header().used_bytes);
    const bool stuck = held_bytes() >= used || is_kept_by_pins(bytes);  // what is queued would not help
    const std::int64_t now = monotonic_ns();
    if (!stuck) hoarded_since = 0;
    if (stuck && hoarded_since == 0) hoarded_since = now;
    const bool impatient = stuck && (wait.deadline.is_immediate() || now - hoarded_since >= kHoardPatienceNs);
    if (impatient && short_of_machine) {
      return Error{Code::kOutOfSharedMemory, "the machine or its control group has " +
                                                 megabytes(available_memory_bytes()) + " left, too few for " +
                                                 megabytes(bytes) + " more; the arena uses " + megabytes(used) +
                                                 " of its budget of " + megabytes(max_bytes())};
    }
    if (impatient) {
      return Error{Code::kOutOfSharedMemory,
                   "no room for " + megabytes(bytes) + ": of the budget of " + megabytes(max_bytes()) + ", " +
                       megabytes(used) + (held_bytes() >= used ? " are held and none are queued" : " are in use") +
                       " (" + describe_holders(4) + ")" +
                       (is_pinned() ? ", and the rest stays with blocks of other sizes, since "
                                      "a process pinned the arena"
                                    : "") +
                       "; drop received arrays, or give the arena a larger max_bytes"};
    }
    if (!looked) continue;
    switch (waiting.sleep()) {
      case EventWait::Wake::kLookAgain: repaired_now = false; break;
      case EventWait::Wake::kInterrupted: return Error{Code::kInterrupted, "interrupted while waiting for memory"};
      case EventWait::Wake::kTimedOut:
        return Error{Code::kFull, "no room for " + megabytes(bytes) + " in time: " + megabytes(used) +
                                      " of the budget of " + megabytes(max_bytes()) + " are in use"};
    }
  }
}

// Under the arena lock: the class with free pages that has gone unused for longest, or null.
ClassState* Arena::least_recently_used() noexcept {
  ClassState* oldest = nullptr;
  for (unsigned k = kMinClass; k <= geometry().max_class(); ++k) {
    ClassState& state = header().classes[k - kMinClass];
    if (load_relaxed(state.warm) == 0) continue;
    if (oldest == nullptr || load_relaxed(state.last_freed) < load_relaxed(oldest->last_freed)) oldest = &state;
  }
  return oldest;
}

// Under the arena lock: takes free blocks with pages off their lists, those of the class least recently used first,
// until they hold `want` bytes or there are kEvictAtOnce.
std::size_t Arena::pick_victims(std::uint64_t want, Identity me, Victim* victims) noexcept {
  if (is_pinned()) return 0;
  std::size_t count = 0;
  ClassState* state = nullptr;
  while (want != 0 && count < kEvictAtOnce && (state = least_recently_used()) != nullptr) {
    const unsigned size_class = kMinClass + static_cast<unsigned>(state - header().classes);
    const std::uint64_t place = load_relaxed(state->warm);
    BlockEntry* block = free_entry(size_class, place);
    if (block == nullptr) return count;
    const BlockId id = BlockId::make(size_class, place - 1);
    store_relaxed(state->warm, load_relaxed(block->next_free));
    const std::uint64_t committed = committed_of(*block, size_class);
    const std::uint64_t bytes = std::min(committed, round_up(std::min(want, committed), kPageBytes));
    const std::uint32_t generation = (generation_of_block(load_relaxed(block->word)) + 1) & kBlockGenerationMask;
    store_release(block->word, block_word(BlockState::kWriting, me, generation));
    store_relaxed(block->flags, 0u);
    store_relaxed(block->list_length, 0u);
    store_relaxed(block->refcount, 0u);
    // In use until it is freed again, but not a sign of what is needed (note_usage).
    store_release(header().used_bytes, load_relaxed(header().used_bytes) + committed);
    victims[count++] = Victim{BlockRef{id, generation}, committed - bytes, bytes};
    want -= std::min(want, bytes);
  }
  return count;
}

// Gives pages of free blocks back to the system until `want` bytes are. Without `wait` it never blocks.
std::uint64_t Arena::evict(std::uint64_t want, const WaitContext* wait) noexcept {
  const Identity me = current_identity();
  std::uint64_t done = 0;
  bool refused = false;
  while (me != kNobody && done < want && !refused) {
    if (wait != nullptr ? !lock_blocks_quietly(*wait) : !try_lock_blocks()) return done;
    Victim victims[kEvictAtOnce];
    const std::size_t count = pick_victims(want - done, me, victims);
    unlock_blocks();
    if (count == 0) return done;
    const BlockingScope blocking(wait != nullptr ? wait->hooks : nullptr);
    for (std::size_t i = 0; i < count; ++i) {
      if (give_back(victims[i].block, victims[i].keep, victims[i].bytes)) {
        done += victims[i].bytes;
      } else {
        refused = true;
      }
    }
  }
  return done;
}

std::uint64_t Arena::trim() noexcept {
  const WaitContext wait;
  if (check_participants(0)) reconcile_quietly(wait);
  return evict(load_acquire(header().committed_bytes), &wait);
}

// After a release: gives back what is beyond the most that was needed lately, a piece at a time.
void Arena::trim_excess() noexcept {
  const std::uint64_t committed = load_relaxed(header().committed_bytes);
  const std::uint64_t used = load_relaxed(header().used_bytes);
  const std::uint64_t idle = committed > used ? committed - used : 0;
  if (idle <= kKeptFree) return;
  const std::uint64_t keep =
      std::max({kKeptFree, load_relaxed(header().peak_used[0]), load_relaxed(header().peak_used[1])});
  if (idle > keep) evict(std::min(idle - keep, kMostPunched), nullptr);
}

void Arena::published(OwnedBlock& block) noexcept {
  std::uint64_t word = block_word(BlockState::kWriting, block.writer_, block.ref_.generation);
  compare_swap(entry(block.ref_.id)->word, word, block_word(BlockState::kLive, kNobody, block.ref_.generation));
  block.arena_ = nullptr;
}

void Arena::make_live(BlockRef ref) noexcept {
  BlockEntry* block = entry(ref.id);
  if (block == nullptr) return;
  std::uint64_t word = load_acquire(block->word);
  if (state_of(word) == BlockState::kWriting && generation_of_block(word) == ref.generation) {
    compare_swap(block->word, word, block_word(BlockState::kLive, kNobody, ref.generation));
  }
}

// Whether a number read from shared memory is that of a block that was ever in use: only of those a table is mapped.
bool Arena::was_used(BlockId id) const noexcept {
  return geometry().contains(id) && id.index() < load_acquire(header().classes[id.size_class() - kMinClass].high);
}

bool Arena::is_current(BlockRef ref) noexcept {
  const BlockEntry* block = was_used(ref.id) ? mapping_->entry(ref.id) : nullptr;
  if (block == nullptr) return false;
  const std::uint64_t word = load_acquire(block->word);
  return state_of(word) != BlockState::kFree && generation_of_block(word) == ref.generation;
}

}  // namespace shmtree::memory
