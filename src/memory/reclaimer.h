// When a block may be freed, and who does it. Letting go never blocks: garbage collectors do it anywhere.
//
// Invariants:
//   - A live block is freed only under the arena lock, and only if no holder bit is set, its refcount is 0 and no
//     delivery record keeps it. Whoever makes one of these stop being true afterwards calls collect().
//   - A block that a channel may keep is never collected by who does not know that it left the channel.
//   - If the lock is taken then, the free is deferred: the block goes on this participant's deferred-free list, in its
//     slot. That is a Dekker handshake with the lock's owner: the one stores the block, then the hint, and looks at the
//     lock; the other stores the lock, and looks at the hint. With a full barrier between store and look, on both
//     sides, one of them sees the other. A list that is full asks for a recovery: a reconcile finds the block.
//   - Pages go only out of blocks that this process is writing, having taken them off the free lists. So nobody holds
//     them, and while anybody has pages of the arena pinned, none are taken.
//
// Thread safety: any thread. Without allocation, so that a destructor may come here when there is no memory.
#pragma once

#include "memory/block_pool.h"
#include "memory/owned_block.h"
#include "memory/participants.h"
#include "memory/robust_lock.h"

namespace shmtree::memory {

class Reclaimer {
 public:
  Reclaimer(Mapping& mapping, BlockTable& table, Participants& participants, BlockPool& pool) noexcept
      : header_(mapping.header()), file_(mapping.file()), table_(table), participants_(participants), pool_(pool) {}

  RobustLock arena_lock() const noexcept { return {header_.arena_lock, participants_}; }
  // Not while derived state is wrong: a refcount of 0 means nothing then.
  bool try_lock() noexcept { return try_lock_as(participants_.current()); }
  // Lets go of the arena lock and sees to what others could not free meanwhile.
  void unlock() noexcept;

  // Frees the block if nothing keeps it, and then pages that are not needed. Never blocks: where
  // somebody has the arena lock, this process too, it is left to who lets go of that.
  void collect(BlockRef ref) noexcept;
  // This process's bit was on a block that it did not hold, and is gone again. Who let go of the block meanwhile, of
  // whatever use of it, may have seen the bit and left the block to us.
  void collect_after_doubt(BlockId id) noexcept;
  // A delivery record begins or ceases to keep the block; under the receivers' lock.
  void set_delivered(BlockRef ref, bool delivered) noexcept;
  // A record begins to keep a block that this process holds, and is about to let go of. False when the arena's lock is
  // taken.
  bool try_set_delivered(BlockRef ref) noexcept;

  // Under the arena lock: whether a list, a transfer, a delivery record or a holder keeps the block; and whether one
  // but `me` does.
  bool is_referenced(const BlockEntry& block) const noexcept;
  static bool is_shared(const BlockEntry& block, Identity me) noexcept;
  // Frees the block if nothing keeps it, then those that only it referred to.
  void free_if_unreferenced(BlockRef ref) noexcept;
  // Drops the reference of a list or a transfer, and frees the block if nothing keeps it. Under the arena lock.
  void drop_reference(BlockRef ref) noexcept;
  void run_deferred_frees() noexcept;

  // Punches the pages of free blocks out of the file, one lock's worth, until `want` bytes are. Called with the arena
  // lock held, returns without. `done` is false when there may be more.
  struct Evicted {
    std::uint64_t bytes = 0;
    bool done = true;
  };
  Evicted evict_and_unlock(std::uint64_t want, platform::WaitHooks* hooks) noexcept;
  // Punches `bytes` from `keep` on out of a block that this process is writing, and frees it. False when the system
  // kept the pages: they stay counted.
  bool give_back(BlockRef ref, std::uint64_t keep, std::uint64_t bytes) noexcept;
  // Frees a block of a dead writer that this process has taken over. How many of its pages exist is not known.
  void give_up_unfinished(BlockRef ref) noexcept;

 private:
  friend class OwnedBlock;
  bool try_lock_as(Identity me) noexcept;
  void free_or_defer(BlockRef ref, Identity me) noexcept;
  bool defer_free(BlockRef ref, Identity me) noexcept;
  std::uint64_t drop_references(BlockId id, BlockEntry& block, std::uint64_t orphans, std::uint64_t& count) noexcept;
  void trim_excess() noexcept;

  ArenaHeader& header_;
  const platform::CheckedFd& file_;
  BlockTable& table_;
  Participants& participants_;
  BlockPool& pool_;
};

}  // namespace shmtree::memory
