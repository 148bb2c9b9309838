// Pins blocks for this process: counts its leases of each block, and sets the holder bits by which other processes see
// them.
//
// Invariants:
//   - This process's holder bit of a block is set while it has a lease of the block, or a hold that was begun. The bit
//     is set before anything else that keeps the block releases it (the window moves on, the arena lock is released),
//     and the last lease or hold clears it.
//   - The bit is cleared under `mutex_`, so a thread that begins a hold at that moment sets the bit afterwards.
//   - An optimistic pin (begin_while) is set, and undone, in one critical section of `mutex_`, and undone only if this
//     process has no hold of the block. So it never clears the bit of a real hold, whichever use (generation) of the
//     block that hold is for.
//   - The counts of leases are private to the process. A forked child has its parent's counts and the matching bits. If
//     it got no bits, it begins with no counts, and the fork epoch tells inherited leases from its own.
//   - A block that came with a message is seen only by its receiver, and by children forked since. Before a receiver
//     builds anything from the message, it checks whether an earlier receiver may have seen the block (is_seen).
//
// Thread safety: any thread; the functions that fork handlers call, with every fork-safe mutex held. Releasing a hold
// never blocks.
#pragma once

#include <span>

#include "memory/layout.h"
#include "memory/reconciler.h"
#include "platform/dcheck.h"
#include "platform/flat_table.h"

namespace shmtree::memory {

// The leases that one process has of each block. Only add() allocates. Thread safety: none.
class HoldCounts {
 public:
  struct Hold {
    std::uint64_t id = 0;
    std::uint32_t generation = 0;
    std::uint32_t leases = 0;
    std::uint32_t in_flight = 0;  // holds begun by receiving threads, not leases yet
    std::uint32_t unused = 0;

    bool is_free() const noexcept { return id == 0; }
  };

  Hold* find(BlockId id) noexcept { return table_.find(hash(id.value), HasId{id.value}); }
  // Returns the block's entry, which it adds if there is none. Null if there is no memory for it.
  Hold* add(BlockId id) noexcept {
    SHMTREE_DCHECK(id.value != 0);
    if (!table_.make_space(hash_of)) return nullptr;
    Hold& hold = table_.slot(hash(id.value), HasId{id.value});
    if (hold.is_free()) table_.insert(hold, Hold{id.value});
    return &hold;
  }
  void erase(Hold* hold) noexcept {
    SHMTREE_DCHECK(hold->leases == 0 && hold->in_flight == 0);
    table_.erase(hold, hash_of);
  }
  void clear() noexcept { table_.clear(); }

  template <class Visit>
  void for_each(Visit visit) {
    table_.for_each(visit);
  }

 private:
  struct HasId {
    std::uint64_t id;
    bool operator()(const Hold& hold) const noexcept { return hold.id == id; }
  };
  static std::uint64_t hash(std::uint64_t id) noexcept { return platform::mixed(id) >> 32; }
  static std::uint64_t hash_of(const Hold& hold) noexcept { return hash(hold.id); }

  platform::FlatTable<Hold> table_;
};

class HolderTable {
 public:
  HolderTable(const ArenaParts& parts, HeldBytes& held, Reconciler& reconciler) noexcept
      : parts_(parts), held_(held), reconciler_(reconciler) {}

  // begin() pins a block that is in a window, before the window moves on. It returns false, and does nothing, if this
  // process has no memory to note the hold. Call adopt() exactly once after it to make the hold a lease, for views, or
  // drop() if the message was copied out. Before that, share() makes further leases. Without a hold that was begun,
  // adopt() and share() return false.
  bool begin(BlockRef ref, Identity me) noexcept;
  bool adopt(BlockRef ref) noexcept { return lease_begun(ref, 1); }
  bool share(BlockRef ref) noexcept { return lease_begun(ref, 0); }
  void drop(BlockRef ref) noexcept { end(ref, &HoldCounts::Hold::in_flight); }
  // Ends a lease that was made in that epoch. Does nothing in a child that inherited the object but not the hold.
  void end_lease(BlockRef ref, std::uint32_t fork_epoch) noexcept {
    if (fork_epoch == this->fork_epoch()) end(ref, &HoldCounts::Hold::leases);
  }
  // An optimistic pin of a block that is in use as long as `word` has that value. Sets the bit, checks the word, and
  // clears the bit if the word has changed. Takes no shared lock. A process that frees the block must first change the
  // word, execute a full fence, then check the holders. kDone: call adopt() or drop() next.
  enum class Tried { kDone, kChanged, kNoMemory };
  Tried begin_while(BlockRef ref, Identity me, const std::atomic<std::uint64_t>& word, std::uint64_t value) noexcept;
  // begin_new() pins and publishes a written block that no other process knows. begin_existing() pins a block that must
  // still be in use, and of that kind. Code::kNotFound or Code::kIncompatible if it is not. The kind is checked before
  // the pin, because the end of a pin frees a block that only a channel keeps.
  Status begin_new(OwnedBlock& block);
  Status begin_existing(BlockRef ref, BlockKind kind, const platform::WaitContext& wait);
  // Pins a block of this process for a participant that does not run yet.
  void hold_for(BlockRef ref, Identity child) noexcept;

  // Returns true if anything besides this process keeps a block that it holds: another process, a message or a delivery
  // record. Once false, only this process can make it true again.
  Result<bool> is_shared(BlockRef ref, const platform::WaitContext& wait);
  // Records that `block` refers to `referred`, which the caller holds and which then live as long as the block. The
  // list is stored in the last bytes of the block, which the caller left for it. It takes 16 bytes for each reference,
  // or for each of `most` if that is more.
  Status refer(const OwnedBlock& block, std::span<const BlockRef> referred, const platform::WaitContext& wait,
               std::uint64_t most = 0);
  // Appends `referred` to the list of a block that left space for it; the caller holds both. Does nothing if the list
  // has more than `already` references: another process was faster.
  Status refer_also(BlockRef block, BlockRef referred, std::uint64_t already, const platform::WaitContext& wait);

  // Returns true if another living participant, or a lease of this process, may see the block. A hold that was begun
  // does not count.
  bool is_seen(BlockRef ref) noexcept;
  // forks(): number of forks of this process. is_inherited(): true if a child forked since `forks` may have the block.
  std::uint32_t forks() const noexcept { return forks_.load(std::memory_order_relaxed); }
  bool is_inherited(BlockRef ref, std::uint32_t forks) noexcept;

  std::uint32_t fork_epoch() const noexcept { return fork_epoch_.load(std::memory_order_relaxed); }
  // Number of leases in this process, for tests.
  std::uint64_t lease_count();

  // Fork handlers. pass_to_child(), in the parent: sets the child's bit for every block of which this process has a
  // lease, unless the child is kNoIdentity. after_fork_in_child(): `has_bits` says that the child got those bits.
  void pass_to_child(Identity child) noexcept;
  void after_fork_in_child(bool has_bits) noexcept;

 private:
  bool lease_begun(BlockRef ref, std::uint32_t fewer_begun) noexcept;
  void end(BlockRef ref, std::uint32_t HoldCounts::Hold::*what) noexcept;
  void note_hold(BlockEntry& block) noexcept;
  bool is_held_by_others(BlockRef ref) const noexcept;

  const ArenaParts parts_;
  HeldBytes& held_;
  Reconciler& reconciler_;
  platform::ForkSafeMutex mutex_;
  HoldCounts counts_;                         // under mutex_
  std::atomic<std::uint32_t> forks_{0};       // changes under mutex_
  std::uint32_t forks_without_holds_ = 0;     // under mutex_; number of the last fork with a child without bits
  std::atomic<std::uint32_t> fork_epoch_{0};  // changes in a child that did not get the holds of its parent
};

}  // namespace shmtree::memory
