// Decides when a block may be freed, and frees it. A release never blocks: garbage collectors run it anywhere.
//
// Invariants:
//   - A live block is freed only under the arena lock, and only if no holder bit is set, its refcount is 0 and no
//     delivery record keeps it. A process that clears a bit, drops a reference or ends such a record calls collect()
//     afterwards.
//   - If a channel may keep a block, a process collects it only if it knows that the block has left the channel.
//   - If the arena lock is taken, the free is deferred: this process adds the block to its deferred-free list, in its
//     participant slot. That is a Dekker handshake with the lock's owner. This process stores the block, then the hint,
//     and reads the lock. The owner clears the lock and reads the hint. Both have a full barrier between store and
//     read, so at least one sees the other. If the list is full, the process requests a recovery, which finds the
//     block.
//   - The process that frees a block ends the transfers that the block carries, before the block's word says free. If
//     that was the transfer of an end, it wakes the waiters of the channel while it still has the arena lock, since the
//     channel may be freed afterwards. If it is killed before that, recovery wakes them.
//   - Pages are released only from blocks that this process has taken off the free lists and is writing, so no process
//     holds them. While any process has pages of the arena pinned, no blocks are taken for that.
//
// Thread safety: any thread. Allocates nothing, so that destructors can use it when there is no memory.
#pragma once

#include <utility>

#include "memory/block_pool.h"
#include "memory/participants.h"
#include "memory/robust_lock.h"
#include "platform/dcheck.h"

namespace shmtree::memory {

class Arena;  // only passed on to the channel layer
class Reclaimer;

// A block that this process is writing. The destructor frees it unless it was published or turned into a Lease.
// Move-only.
class OwnedBlock {
 public:
  OwnedBlock() noexcept = default;
  OwnedBlock(Reclaimer& reclaimer, const BlockPool::Taken& taken, Identity writer, std::uint64_t bytes,
             bool cold) noexcept
      : reclaimer_(&reclaimer), ref_(taken.ref), writer_(writer), data_(taken.data), bytes_(bytes), cold_(cold) {
    SHMTREE_DCHECK(data_ != nullptr && writer_ != kNoIdentity && bytes_ <= std::uint64_t{1} << ref_.id.size_class());
  }
  OwnedBlock(OwnedBlock&& other) noexcept { *this = std::move(other); }
  OwnedBlock& operator=(OwnedBlock&& other) noexcept {
    if (this != &other) {
      abandon();
      reclaimer_ = std::exchange(other.reclaimer_, nullptr);
      ref_ = other.ref_;
      writer_ = other.writer_;
      data_ = other.data_;
      bytes_ = other.bytes_;
      cold_ = other.cold_;
    }
    return *this;
  }
  ~OwnedBlock() { abandon(); }

  bool valid() const noexcept { return reclaimer_ != nullptr; }
  BlockRef ref() const noexcept { return ref_; }
  // The process that writes it. A forked child inherits the object without being the writer.
  Identity writer() const noexcept { return writer_; }
  std::byte* data() const noexcept {
    SHMTREE_DCHECK(valid());
    return data_;
  }
  std::uint64_t bytes() const noexcept { return bytes_; }
  // True if pages were committed for it. They have never been touched, so a copy into them is faster after populate().
  bool cold() const noexcept { return cold_; }

  // Call it after the block was stored in a window, or pinned: it no longer belongs to its writer.
  void publish() noexcept;
  void abandon() noexcept {
    if (valid()) give_back();
  }
  // Drops the object without a change to the block: another owner is responsible for it.
  void release() noexcept { reclaimer_ = nullptr; }

 private:
  void give_back() noexcept;

  Reclaimer* reclaimer_ = nullptr;  // valid because the writer keeps the arena
  BlockRef ref_{};
  Identity writer_ = kNoIdentity;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  bool cold_ = false;
};

class Reclaimer {
 public:
  Reclaimer(Arena& arena, Mapping& mapping, BlockTable& table, Participants& participants, BlockPool& pool) noexcept
      : arena_(arena),
        header_(mapping.header()),
        file_(mapping.file()),
        table_(table),
        participants_(participants),
        pool_(pool) {}
  // A function of the channel layer that wakes the waiters of a channel. It takes no lock. Runs under the arena lock.
  using ChannelWaker = void (*)(Arena&, BlockRef channel) noexcept;
  static void set_channel_waker(ChannelWaker waker) noexcept;

  RobustLock arena_lock() const noexcept { return {header_.arena_lock, participants_}; }
  // Takes the arena lock if it is free. Fails while derived state is wrong: a refcount of 0 means nothing then.
  bool try_lock() noexcept { return try_lock_as(participants_.current()); }
  // Releases the arena lock, and frees what other processes could not free meanwhile.
  void unlock() noexcept;

  // Frees the block if nothing keeps it, and then releases pages that are not needed. Never blocks: if any process has
  // the arena lock, even this one, the free is left to the lock's owner.
  void collect(BlockRef ref) noexcept;
  // Call it after an optimistic pin was undone. A concurrent release of the block, in any of its uses, may have skipped
  // the free because it saw the bit, so this checks the block again.
  void collect_after_failed_pin(BlockId id) noexcept;
  // Records that a delivery record keeps the block, or no longer does. Under the receivers' lock.
  void set_delivered(BlockRef ref, bool delivered) noexcept;
  // Records that a delivery record keeps a block that this process holds and is about to release. Returns false if the
  // arena lock is taken.
  bool try_set_delivered(BlockRef ref) noexcept;

  // is_referenced(): true if a list, a transfer, a delivery record or a holder keeps the block. is_shared(): the same
  // without the holder `me`. Both answers are final only under the arena lock.
  bool is_referenced(const BlockEntry& block) const noexcept;
  static bool is_shared(const BlockEntry& block, Identity me) noexcept;
  // Frees the block if nothing keeps it, then the blocks to which only it referred. Under the arena lock.
  void free_if_unreferenced(BlockRef ref) noexcept;
  // Drops the reference of a list or a transfer, and frees the block if nothing keeps it. Under the arena lock.
  void drop_reference(BlockRef ref) noexcept;
  void run_deferred_frees() noexcept;
  // Call it when a transfer has ended because its message is lost. If the object was an end, wakes the waiters of its
  // channel. Under the arena lock.
  void announce_lost(std::uint64_t state, std::uint64_t block) noexcept;

  // Punches pages of free blocks out of the file until `want` bytes are released, from at most kMaxVictims blocks.
  // Call it with the arena lock held; it releases the lock. `done` is false if there may be more.
  struct Evicted {
    std::uint64_t bytes = 0;
    bool done = true;
  };
  Evicted evict_and_unlock(std::uint64_t want, platform::WaitHooks* hooks) noexcept;
  // Punches `bytes` from `keep` on out of a block that this process is writing, and frees the block. Returns false if
  // the system kept the pages, which then stay counted.
  bool give_back(BlockRef ref, std::uint64_t keep, std::uint64_t bytes) noexcept;
  // Frees a block of a dead writer that this process has taken over. It is unknown which of its pages exist.
  void give_up_unfinished(BlockRef ref) noexcept;

 private:
  friend class OwnedBlock;
  bool try_lock_as(Identity me) noexcept;
  void free_or_defer(BlockRef ref, Identity me) noexcept;
  bool defer_free(BlockRef ref, Identity me) noexcept;
  // A chain, through `next_free`, of blocks without references. `count` bounds the walk, so other processes cannot make
  // it endless by damaging the chain.
  struct Orphans {
    std::uint64_t first = 0;  // packed
    std::uint64_t count = 0;
  };
  void drop_reference_of(const BlockEntry& owner, BlockRef ref, Orphans& orphans) noexcept;
  void drop_references(BlockRef ref, BlockEntry& block, Orphans& orphans) noexcept;
  void trim_excess() noexcept;

  Arena& arena_;
  ArenaHeader& header_;
  const platform::CheckedFd& file_;
  BlockTable& table_;
  Participants& participants_;
  BlockPool& pool_;
};

// The parts of an arena that recovery, allocation and reports need.
struct ArenaParts {
  Mapping& mapping;
  BlockTable& table;
  Participants& participants;
  BlockPool& pool;
  Reclaimer& reclaimer;
};

}  // namespace shmtree::memory
