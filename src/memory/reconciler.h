// Recovery. Reconciler is the interface: it takes locks only while derived state is correct, and gives the process an
// identity with a clean slot. ReconcilePass is one pass of recovery: a mark-and-sweep over the blocks. Its roots are
// the blocks that channels keep and that living processes hold. docs/internals/recovery.md has the argument, arena.h
// the order of stores on which it relies.
//
// Invariants of Reconciler:
//   - A thread that has taken a lock here has since seen `recovery_requests` at 0. If it was not 0, the thread has
//     repaired derived state and checked again.
//   - reconcile() is called with no lock held, and holds at most the two locks of one channel and the arena's at a
//     time. Lock order: reconcile_lock < a channel's senders < its receivers < the arena's < the ring's of a Broadcast
//     or a Latest.
//   - `recovery_requests` is cleared last, and only if no death was found since the pass began.
//
// Invariants of a pass:
//   - The pass never stops the arena as a whole. It first takes a snapshot of every block's word. Then it marks,
//     channel by channel and under that channel's locks, the blocks that windows and records keep. Only then it takes
//     the arena lock.
//   - A block is freed only if it was in use and unchanged since the snapshot, and no channel marked it. It cannot have
//     entered a window since: a block enters one only once, while its word says kWriting, and a dead writer's block is
//     freed only if the writer was dead before the snapshot.
//   - A transfer of one of its ends keeps a channel that no living process holds, unless a message carries the transfer
//     and is not kept itself. So channels that are in transit only within each other's messages are freed.
//   - What the pass cannot check, for lack of a lock, memory or address space, does not count as absent: it then frees
//     nothing.
//   - It changes primary state only by single stores that are correct on their own, so it may be killed anywhere.
//
// Thread safety: any thread for Reconciler, none for a pass.
#pragma once

#include <vector>

#include "memory/reclaimer.h"
#include "memory/transfer_table.h"
#include "platform/dcheck.h"

namespace shmtree::memory {

class Arena;  // only passed on to the walker
class ReconcilePass;

// A function of the channel layer that repairs a channel and marks the blocks that it keeps.
using ChannelWalker = void (*)(Arena&, BlockRef channel, ReconcilePass&);

// The participants that were dead when a recovery pass began.
class DeadParticipants {
 public:
  explicit DeadParticipants(Participants& participants) noexcept : participants_(participants) {}

  // Checks every slot. Returns false if the owner of a slot changed during the check; then the next pass checks the new
  // owner.
  bool find(const platform::CheckedFd& file) noexcept;

  // Returns true if the participant has died or exited, or if its slot has a new owner that holds nothing yet.
  bool contains(std::uint32_t slot) const noexcept { return (masks_[slot / 64] & ParticipantSet::bit_of(slot)) != 0; }
  // Returns the bits of the dead in a word of a set.
  std::uint64_t mask(std::uint32_t word) const noexcept { return masks_[word]; }
  // Returns true if the participant is dead and had not detached.
  bool was_killed(std::uint32_t slot) const noexcept {
    return contains(slot) && slots_[slot].status != static_cast<std::uint32_t>(ParticipantStatus::kDetached);
  }
  // Returns true if the writer was dead then. A writer that has died since may have published the block after its
  // channel was walked; its own death causes the next pass.
  bool is_dead_writer(Identity writer) const noexcept;
  bool hold_all_of(const ParticipantSet& set) const noexcept;
  // Frees their slots. A kStale slot is swept now, and becomes its new owner's.
  void free_slots() noexcept;

 private:
  struct Slot {
    std::uint32_t generation, status;
    bool is_unlocked;  // its last owner is dead
  };
  Participants& participants_;
  std::uint64_t masks_[kParticipantWords]{};
  Slot slots_[kMaxParticipants]{};
};

// The words of all blocks as one walk of a recovery pass found them, and a mark on each block that a channel keeps.
class BlockSnapshot {
 public:
  // Copies every word, and calls visit(word) for each.
  template <class Visit>
  void take(const BlockTable& table, Visit visit) {
    for (unsigned k = kMinClass; k <= table.geometry().max_class(); ++k) {
      const std::uint64_t entries = table.walked_entries(k);
      of_class(k).words.assign(entries, 0);
      of_class(k).marks.assign(entries, 0);
    }
    table.for_each([&](BlockId id, const BlockEntry& block) {
      if (!contains(id)) return;
      std::uint64_t& word = of_class(id.size_class()).words[id.index()];
      word = platform::load_acquire(block.word);
      visit(word);
    });
  }
  // Calls visit(id, word) for each word until it returns false.
  template <class Visit>
  void for_each(Visit visit) const {
    for (unsigned k = kMinClass; k <= kMaxClass; ++k) {
      for (std::uint64_t index = 0; index < of_class(k).words.size(); ++index) {
        if (!visit(BlockId::make(k, index), of_class(k).words[index])) return;
      }
    }
  }

  bool is_unchanged(BlockId id, std::uint64_t word) const noexcept {
    return contains(id) && of_class(id.size_class()).words[id.index()] == word;
  }
  void mark(BlockId id) noexcept {
    if (contains(id)) of_class(id.size_class()).marks[id.index()] = 1;
  }
  bool is_marked(BlockId id) const noexcept { return contains(id) && of_class(id.size_class()).marks[id.index()] != 0; }

 private:
  struct OfClass {
    std::vector<std::uint64_t> words;
    std::vector<std::uint8_t> marks;
  };
  bool contains(BlockId id) const noexcept { return id.index() < of_class(id.size_class()).words.size(); }
  OfClass& of_class(unsigned size_class) noexcept {
    SHMTREE_DCHECK(size_class >= kMinClass && size_class <= kMaxClass);
    return classes_[size_class - kMinClass];
  }
  const OfClass& of_class(unsigned size_class) const noexcept { return classes_[size_class - kMinClass]; }

  OfClass classes_[kClasses];
};

class ReconcilePass {
 public:
  // Blocks of dead writers that this process has taken over. It is unknown which of their pages exist.
  using Unfinished = std::vector<BlockRef>;
  ReconcilePass(Arena& arena, const ArenaParts& parts, Identity me, const platform::WaitContext& wait,
                Unfinished& unfinished)
      : arena_(arena),
        parts_(parts),
        me_(me),
        wait_(wait),
        unfinished_(unfinished),
        dead_(parts.participants),
        transfers_(parts.mapping.header(), parts.table, parts.participants) {}

  static void set_channel_walker(ChannelWalker walker) noexcept;
  // Returns true if the pass is complete; false if state changed meanwhile, so that it must be repeated.
  Result<bool> run();

  // For the walker.
  const DeadParticipants& dead() const noexcept { return dead_; }
  // Marks a block that the channel keeps: it is in the window, in a record, or part of the channel itself.
  void mark(BlockRef ref) noexcept;
  // Takes a channel's lock, also from a dead owner, without checking `recovery_requests`. If that fails, the channel
  // may keep any block, so the pass frees nothing.
  Status lock(std::atomic<std::uint32_t>& word) {
    Status locked = RobustLock(word, parts_.participants).lock(me_, wait_);
    if (!locked && failed_.ok()) failed_ = locked;
    return locked;
  }
  // Call it if a part of the channel cannot be mapped. The pass then frees nothing.
  void give_up() noexcept { unmapped_ = true; }

 private:
  Status restore_marks();
  bool map_tables() noexcept;
  void take_snapshot();
  void walk_transfers() noexcept;
  Status walk_channels();
  Status walk_channel(BlockRef channel);
  bool is_kept(BlockRef channel) const noexcept;
  bool is_lost(BlockRef carrier) const noexcept;

  // Under the arena lock.
  bool rebuild() noexcept;
  void forget_dead_in(BlockId id, BlockEntry& block) noexcept;
  void count_refs() noexcept;
  void free_unreferenced() noexcept;

  Arena& arena_;
  const ArenaParts parts_;
  const Identity me_;
  const platform::WaitContext& wait_;
  Unfinished& unfinished_;
  Status failed_ = success();
  bool unmapped_ = false;
  DeadParticipants dead_;
  const TransferTable transfers_;
  BlockSnapshot snapshot_;
  std::vector<BlockRef> abandoned_channels_;
};

class Reconciler {
 public:
  Reconciler(Arena& arena, const ArenaParts& parts) noexcept
      : arena_(arena), parts_(parts), header_(parts.mapping.header()) {}

  // Returns this process's identity. Takes a slot on the first call after attach, or after a fork without handlers.
  // Code::kUnavailable if living processes have all 1,024 slots.
  Result<Identity> identity() {
    if (const Identity me = parts_.participants.current(); me != kNoIdentity) [[likely]]
      return me;
    return take_identity();
  }
  // Reserves a slot for a process that is about to start. Sweeps the slot first if it is a dead participant's.
  Result<ReservedSlot> reserve_slot();

  // Takes the lock of a channel, a ring or the arena. First repairs derived state that is known to be wrong.
  // Errors as of RobustLock.
  Status lock(std::atomic<std::uint32_t>& word, const platform::WaitContext& wait);
  Status lock_arena(const platform::WaitContext& wait) { return lock(header_.arena_lock, wait); }
  // Rebuilds all derived state, and releases what dead participants held. Call it with no lock held. Idempotent.
  Status reconcile(const platform::WaitContext& wait);
  // The functions `..._quietly` are for callers that may not throw. They return false on any error, std::bad_alloc too.
  bool lock_quietly(std::atomic<std::uint32_t>& word, const platform::WaitContext& wait) noexcept;
  // For a destructor, or for a caller that has another lock. Returns false if the lock is not free within 10 ms, or at
  // once if its owner is dead or derived state needs a repair.
  bool lock_briefly(std::atomic<std::uint32_t>& word) noexcept;
  bool lock_arena_quietly(const platform::WaitContext& wait) noexcept { return lock_quietly(header_.arena_lock, wait); }
  bool reconcile_quietly(const platform::WaitContext& wait) noexcept;

 private:
  Result<Identity> take_identity();
  Status reconcile_as(Identity me, const platform::WaitContext& wait);
  Status repeat_passes(Identity me, const platform::WaitContext& wait, ReconcilePass::Unfinished& unfinished);

  Arena& arena_;  // passed to the channel layer's walker
  const ArenaParts parts_;
  ArenaHeader& header_;
};

}  // namespace shmtree::memory
