// Which participant holds which block: this process's leases, and the bits by which the others see them.
//
// Invariants:
//   - This process's bit of a block is set while it has a lease of the block, or a hold begun: it is set before
//     whatever else keeps the block lets go (the window moves on, the arena lock is released), and cleared with the
//     last one.
//   - The last one clears the bit under `mutex_`, so that a thread that begins to hold the block then sets it after.
//   - A bit that is set in doubt (begin_while) is set, and taken back, in one section under `mutex_`, and only for a
//     block of which this process has no hold: so what is taken back is never the bit of a true hold, of whatever use
//     of the block.
//   - Counts of leases are private to the process. In a forked child they are its parent's, of which it has the bits;
//     when it has not, it begins with none, and the fork epoch tells the leases that it inherited from its own.
//   - Nobody sees a block that came with a message but its receiver, and children that were forked since. What may have
//     been seen by an earlier receiver is looked up before the message is made anything of.
//
// Thread safety: any thread; those that the fork handlers call, with every fork-safe mutex held. Letting go never
// blocks.
#pragma once

#include <span>

#include "memory/layout.h"
#include "memory/reconciler.h"
#include "platform/flat_table.h"
#include "platform/hash.h"

namespace shmtree::memory {

// The leases that one process has of each block. Only add() allocates. Thread safety: none.
class HoldCounts {
 public:
  struct Hold {
    std::uint64_t id = 0;
    std::uint32_t generation = 0;
    std::uint32_t leases = 0;
    std::uint32_t in_flight = 0;  // begun by a receiving thread, not a lease yet
    std::uint32_t unused = 0;

    bool is_free() const noexcept { return id == 0; }
  };

  Hold* find(BlockId id) noexcept { return table_.find(hash(id.value), HasId{id.value}); }
  // Returns the block's entry, which it adds if there is none. Null if there is no memory for it.
  Hold* add(BlockId id) noexcept {
    if (!table_.make_space(hash_of)) return nullptr;
    Hold& hold = table_.place(hash(id.value), HasId{id.value});
    if (hold.is_free()) table_.insert(hold, Hold{id.value});
    return &hold;
  }
  void erase(Hold* hold) noexcept { table_.erase(hold, hash_of); }
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

  // Sets this process's bit for a block found in a window, before the window moves on; then exactly one of adopt (views
  // will be given) and drop (it was copied out) follows, and before that share, for views besides. begin() is false,
  // with nothing done, when this process has no memory to note it; the others for a hold that was not begun.
  bool begin(BlockRef ref, Identity me) noexcept;
  bool adopt(BlockRef ref) noexcept { return lease_begun(ref, 1); }
  bool share(BlockRef ref) noexcept { return lease_begun(ref, 0); }
  void drop(BlockRef ref) noexcept { end(ref, &HoldCounts::Hold::in_flight); }
  // Ends a lease that was made in that epoch: in a child that inherited the object but not the hold there is nothing to
  // end.
  void end_lease(BlockRef ref, std::uint32_t fork_epoch) noexcept {
    if (fork_epoch == this->fork_epoch()) end(ref, &HoldCounts::Hold::leases);
  }
  // Begins to hold a block that is in use as long as `word` has that value, which others may change at any time: sets
  // the bit, looks at the word, and takes the bit back when it has changed. Takes no shared lock. Who changes the word
  // to free the block must look at the holders after that, with a full fence between. kDone: adopt or drop follows.
  enum class Tried { kDone, kChanged, kNoMemory };
  Tried begin_while(BlockRef ref, Identity me, const std::atomic<std::uint64_t>& word, std::uint64_t value) noexcept;
  // Begins to hold a written block that nobody else knows, or one that must still be in use: Code::kNotFound when it is
  // not.
  Status begin_new(OwnedBlock& block);
  Status begin_existing(BlockRef ref, const platform::WaitContext& wait);
  // A participant that does not run yet holds a block of this process's from now on.
  void hold_for(BlockRef ref, Identity child) noexcept;

  // Whether anything but this process keeps a block that it holds: another process, a message, a delivery. Once it is
  // not so, it cannot become so but through this process.
  Result<bool> is_shared(BlockRef ref, const platform::WaitContext& wait);
  // Records that `block` refers to `referred`, which the caller holds: they live as long as it does. The list is stored
  // in the block's last bytes, which the caller left for it (16 bytes each): for `most` of them, if that is more.
  Status refer(const OwnedBlock& block, std::span<const BlockRef> referred, const platform::WaitContext& wait,
               std::uint64_t most = 0);
  // Makes `referred` the next that a block refers to which leaves room for more; the caller holds both. Nothing is done
  // when it refers to more than `already`: somebody was faster.
  Status refer_also(BlockRef block, BlockRef referred, std::uint64_t already, const platform::WaitContext& wait);

  // Whether somebody besides a hold that this process has begun may see the block: another participant that lives, or a
  // lease of this process's.
  bool is_seen(BlockRef ref) noexcept;
  // How often the process has forked; and whether a child since the fork of that number may have the block.
  std::uint32_t forks() const noexcept { return forks_.load(std::memory_order_relaxed); }
  bool is_inherited(BlockRef ref, std::uint32_t forks) noexcept;

  std::uint32_t fork_epoch() const noexcept { return fork_epoch_.load(std::memory_order_relaxed); }
  // Number of leases in this process, for tests and stats.
  std::uint64_t lease_count();

  // The fork handlers: the child's bit for every block that this process has a lease of, if it is anybody; then, in the
  // child.
  void hand_down(Identity child) noexcept;
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
  std::uint32_t forks_without_holds_ = 0;     // under mutex_; the number of the last one whose child has no bits
  std::atomic<std::uint32_t> fork_epoch_{0};  // changes when a child is left without the holds of its parent
};

}  // namespace shmtree::memory
