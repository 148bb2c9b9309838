// The free blocks of an arena, and the byte counts of all blocks. Each size class has three lists of free blocks:
// `resting`, a queue of those that a process held and recently freed; `warm`, a stack of others with pages; and `cold`,
// a stack of those without.
//
// A reader on another core leaves the block's lines in that core's cache. Invalidating them makes the next write of the
// block four to six times slower. So a freed block that was held is not reused until kRestBytes of its class were freed
// after it. Meanwhile the class may grow, while all blocks together have no more than a quarter of the budget; beyond
// that, resting blocks are reused.
//
// Invariants, which hold whenever the arena lock is free and derived state is right:
//   - Each free block below its class's high-water mark is on one list: `cold` if it has no pages, else `resting` or
//     `warm`.
//   - committed_bytes is the sum of `committed` over all blocks, and is never over the budget. used_bytes is the same
//     sum over the blocks that are not free.
//   - A block's word is primary state; the lists are derived. take() stores the word (kWriting) before it changes
//     anything else of the block, and put() stores kFree after everything else. Recovery rebuilds the lists after a
//     kill in between.
//   - A process that walks a list checks that each block is free. If it is not, the process requests a recovery.
//
// Thread safety: any thread; with the arena lock held, unless a comment says otherwise.
#pragma once

#include "memory/layout.h"
#include "memory/mapping.h"

namespace shmtree::memory {

// ArenaHeader::held_bytes: the bytes of blocks that have left a queue, or that never enter one. A receiver that first
// pins a message updates it without a lock, while a recovery may be recounting it.
//
// Invariant: if the flags of a block in use carry the epoch of the sum, the block is in the sum once, or a process is
// about to add it. The sum's upper 16 bits are its epoch, the number of the recount; the block's flags carry the epoch
// in which it was counted. So a process that counts a block and a process that begins a recount can each tell what the
// other has done. Whichever of them moves the block's flags to the new epoch adds the block's bytes.
class HeldBytes {
 public:
  explicit HeldBytes(ArenaHeader& header) noexcept : sum_(header.held_bytes) {}

  std::uint64_t bytes() const noexcept { return platform::load_acquire(sum_) & kHeldMask; }
  // Counts a block in use, unless it is counted already.
  void count(BlockEntry& block) noexcept;
  // Under the arena lock. Subtracts a block of `committed` bytes that no process holds and that is about to be freed.
  void uncount(const BlockEntry& block, std::uint64_t committed) noexcept;

  // Under the arena lock, in this order: begins a recount and returns its epoch; returns the bytes that each block in
  // use adds; adds their sum.
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

  // Without the lock: the budget, and the current byte counts.
  std::uint64_t max_bytes() const noexcept { return mapping_.max_bytes(); }
  std::uint64_t used_bytes() const noexcept { return platform::load_acquire(header_.used_bytes); }
  std::uint64_t committed_bytes() const noexcept { return platform::load_acquire(header_.committed_bytes); }
  std::uint64_t held_bytes() const noexcept { return held_.bytes(); }
  std::uint64_t free_bytes() const noexcept {
    const std::uint64_t used = used_bytes();
    return used >= max_bytes() ? 0 : max_bytes() - used;
  }
  // Bytes of free blocks that have pages.
  std::uint64_t idle_bytes() const noexcept;
  // The committed bytes beyond the recent maximum of used_bytes.
  std::uint64_t excess_bytes() const noexcept;
  // False if the counts exceed the budget: they are damaged, and would make every allocation fail until a reconcile.
  bool counts_are_possible() const noexcept { return committed_bytes() <= max_bytes() && used_bytes() <= max_bytes(); }
  // Before the lock is taken: commits the table pages of the next blocks of a class.
  Status ensure_table(unsigned size_class);

  // Without the lock: true if take() of this class would commit new pages rather than reuse a resting block.
  bool wants_to_grow(unsigned size_class) const noexcept;

  // A block taken off its list, or a new one, in state kWriting by `me`. Its pages are counted and not yet allocated.
  struct Taken {
    BlockRef ref{};
    std::byte* data = nullptr;  // null: none was taken
    std::uint64_t had = 0;      // bytes that already have pages
    bool unmapped = false;      // no address space left to map it
  };
  // Takes no block if the budget has no space for `need` bytes of pages, the table is too short, or a list is damaged.
  // `may_grow`: it may commit new pages instead of reusing a resting block.
  Taken take(unsigned size_class, std::uint64_t need, std::uint64_t bytes, BlockKind kind, Identity me,
             bool may_grow) noexcept;
  // Puts back a block that nothing refers to: into the resting queue if any process held it, else into another list.
  void put(BlockId id, BlockEntry& block) noexcept;

  // A free block that was taken to return its pages to the system: `bytes` bytes, from offset `keep` on.
  struct Victim {
    BlockRef block{};
    std::uint64_t keep = 0, bytes = 0;
  };
  static constexpr std::size_t kMaxVictims = 32;  // under one lock
  // Takes victims, those of the least recently used class first, until they have `want` bytes. Returns their number.
  std::size_t take_victims(std::uint64_t want, Identity me, Victim* victims) noexcept;

  // For recovery: rebuilds the high-water marks from the pages of the file, then lists and counts from the blocks'
  // words.
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
  BlockEntry* free_entry(unsigned size_class, std::uint64_t position) noexcept;
  BlockEntry* next_entry(unsigned size_class, std::uint64_t position) noexcept;
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
