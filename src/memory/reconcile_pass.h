// One pass of recovery: a mark-and-sweep over the blocks. Its roots are the blocks that channels keep and that living
// processes hold. docs/internals/recovery.md has the argument, arena.h the order of stores on which it relies.
//
// Invariants:
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
#pragma once

#include <vector>

#include "memory/block_table.h"
#include "memory/participants.h"
#include "memory/reclaimer.h"
#include "memory/transfer_table.h"
#include "platform/dcheck.h"

namespace shmtree::memory {

class Arena;  // only passed on to the walker
class ReconcilePass;

// The parts of an arena that recovery needs.
struct ArenaParts {
  Mapping& mapping;
  BlockTable& table;
  Participants& participants;
  BlockPool& pool;
  Reclaimer& reclaimer;
};

// A function of the channel layer that repairs a channel and marks the blocks that it keeps.
using ChannelWalker = void (*)(Arena&, BlockRef channel, ReconcilePass&);

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

}  // namespace shmtree::memory
