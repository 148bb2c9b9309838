// The free blocks of an arena, and the counts of bytes of all blocks. Each size class has three lists of free blocks:
// `resting`, a queue of those that somebody held and freed lately; `warm`, a stack of others with pages; and `cold`, a
// stack of those without.
//
// A reader on another core leaves the block's lines in that core's cache. Invalidating them makes the next write of the
// block four to six times slower. So a freed block that was held is not reused until kRestBytes of its class were freed
// after it. Meanwhile the class may grow, while all blocks together have no more than a quarter of the budget; beyond
// that, resting blocks are reused.
//
// Invariants, which hold whenever the arena lock is free and derived state is right:
//   - Each free block below its class's high-water mark is on one list: `cold` if it has no pages, else `resting` or
//   `warm`.
//   - committed_bytes is the sum of all blocks' `committed`, used_bytes that of those that are not free; the first is
//     never over the budget.
//   - A block's word is the truth, the lists are derived: it says writing before anything else of a block taken is
//     stored, and free after everything else of a block put back. What a kill leaves in between is rebuilt.
//   - A list is followed only to blocks that are free: where it leads anywhere else, derived state is marked for
//   recovery.
//
// Thread safety: any thread; with the arena lock held where it is not said otherwise.
#pragma once

#include "memory/block_table.h"
#include "memory/layout.h"

namespace shmtree::memory {

// ArenaHeader::held_bytes: the bytes of blocks that left a queue, or never enter one. It changes without a lock when a
// receiver first takes hold of a message, while a recovery may be counting anew.
//
// Invariant: a block in use whose flag carries the epoch of the sum is in the sum once, or its bytes are on their way
// into it. The sum's upper 16 bits are its epoch, the number of the count; the block's flags carry the one in which it
// was counted. So each of two sides, one that counts a block and one that begins a new count, can tell what the other
// has seen: whoever moves a block's flag to the new epoch is the one who adds its bytes.
class HeldBytes {
 public:
  explicit HeldBytes(ArenaHeader& header) noexcept : sum_(header.held_bytes) {}

  std::uint64_t bytes() const noexcept { return platform::load_acquire(sum_) & kHeldMask; }
  // Counts a block in use, if it is not.
  void count(BlockEntry& block) noexcept;
  // Under the arena lock: a block that nobody holds, and that had `committed` bytes, is about to be freed.
  void uncount(const BlockEntry& block, std::uint64_t committed) noexcept;

  // Under the arena lock, in this order: a new count, for each block in use the bytes that it adds to it, and the sum.
  std::uint32_t begin_recount() noexcept;
  static std::uint64_t recount(BlockEntry& block, std::uint32_t epoch) noexcept;
  void end_recount(std::uint64_t held) noexcept { platform::add(sum_, held); }

 private:
  std::atomic<std::uint64_t>& sum_;
};

class BlockPool {
 public:
  BlockPool(Mapping& mapping, const BlockTable& table, HeldBytes& held) noexcept
      : header_(mapping.header()), mapping_(mapping), table_(table), held_(held) {}

  // Without the lock: bytes a message can count on at most, and bytes free within the budget now.
  std::uint64_t max_bytes() const noexcept { return mapping_.max_bytes(); }
  std::uint64_t used_bytes() const noexcept { return platform::load_acquire(header_.used_bytes); }
  std::uint64_t committed_bytes() const noexcept { return platform::load_acquire(header_.committed_bytes); }
  std::uint64_t held_bytes() const noexcept { return held_.bytes(); }
  std::uint64_t free_bytes() const noexcept {
    const std::uint64_t used = used_bytes();
    return used >= max_bytes() ? 0 : max_bytes() - used;
  }
  // Pages that are free within the arena.
  std::uint64_t idle_bytes() const noexcept;
  // Pages of free blocks beyond the most that was needed lately.
  std::uint64_t excess_bytes() const noexcept;
  // More than the budget is never in use: such counts were damaged, and would refuse every block until a reconcile.
  bool counts_are_possible() const noexcept { return committed_bytes() <= max_bytes() && used_bytes() <= max_bytes(); }
  // Without the lock, before it is taken: the table pages of the next blocks of a class.
  Status ensure_table(unsigned size_class);

  // Without the lock: whether take() of this class would rather get pages for another block than use one that rests.
  bool wants_to_grow(unsigned size_class) const noexcept;

  // A block taken off its list, or a new one, being written by `me`, its pages counted and not yet made.
  struct Taken {
    BlockRef ref{};
    std::byte* data = nullptr;  // null: none was taken
    std::uint64_t had = 0;      // bytes that had pages before
    bool unmapped = false;      // for want of address space
  };
  // None when the budget has no room for `need` bytes of pages, the table is not long enough, or a list was damaged.
  // `may_grow`: it may commit new pages instead of reusing a resting block.
  Taken take(unsigned size_class, std::uint64_t need, std::uint64_t bytes, BlockKind kind, Identity me,
             bool may_grow) noexcept;
  // Puts back a block that nothing refers to. It rests if any process held it.
  void put(BlockId id, BlockEntry& block) noexcept;

  // Free blocks taken so that their pages be given back: the bytes from `keep` on.
  struct Victim {
    BlockRef block{};
    std::uint64_t keep = 0, bytes = 0;
  };
  static constexpr std::size_t kMostVictims = 32;  // under one lock
  // Those of the class least recently used first, until they have `want` bytes; returns how many.
  std::size_t take_victims(std::uint64_t want, Identity me, Victim* victims) noexcept;

  // For recovery: the high-water marks, from what the file has; then lists and counts, from the blocks' words.
  void restore_marks() noexcept;
  void rebuild() noexcept;

 private:
  enum class From : std::uint8_t { kResting, kWarm, kCold, kUnused };
  // A candidate for take(). `block` is null if a list is damaged or address space is exhausted.
  struct Candidate {
    From from = From::kUnused;
    BlockId id{};
    BlockEntry* block = nullptr;
  };
  From choose(const ClassState& state, unsigned size_class, std::uint64_t need, bool may_grow) const noexcept;
  Candidate candidate(const ClassState& state, unsigned size_class, From from) noexcept;
  void remove(ClassState& state, const Candidate& first) noexcept;
  BlockEntry* free_entry(unsigned size_class, std::uint64_t place) noexcept;
  BlockEntry* next_entry(unsigned size_class, std::uint64_t place) noexcept;
  void push(BlockId id, BlockEntry& block, std::uint64_t committed) noexcept;
  void rest(BlockId id, BlockEntry& block) noexcept;
  ClassState* least_recently_used() noexcept;
  void note_usage(std::uint64_t used) noexcept;

  ArenaHeader& header_;
  Mapping& mapping_;
  const BlockTable& table_;
  HeldBytes& held_;
};

}  // namespace shmtree::memory
