// One pass of recovery: docs/recovery.md has the argument, arena.h the order of stores that it relies on. It is a mark
// and sweep over the blocks: the roots are what channels keep and the living hold.
//
// Invariants:
//   - The pass never stops the arena as a whole. It first takes a snapshot of every block's word, then marks channel by
//     channel, under that channel's locks, what windows and records keep, and only then takes the arena lock.
//   - A block is given up only if it was in use and unchanged since the snapshot, and no channel marked it: it cannot
//   have entered a window in between, since a block enters one only once, while its word says writing, and a
//     dead writer's is given up only if the writer was dead before the note.
//   - What cannot be looked at, for want of a lock, memory or addresses, is not taken for absent: the pass then gives
//     nothing up.
//   - It changes the truth only by single stores that are right on their own, so it may be killed anywhere.
#pragma once

#include <vector>

#include "memory/block_table.h"
#include "memory/participants.h"
#include "memory/reclaimer.h"
#include "memory/transfer_table.h"

namespace shmtree::memory {

class Arena;  // here only to be handed on to the walker
class ReconcilePass;

// What recovery works on.
struct ArenaParts {
  Mapping& mapping;
  BlockTable& table;
  Participants& participants;
  BlockPool& pool;
  Reclaimer& reclaimer;
};

// Repairs a channel and finds what it keeps, for the layer above.
using ChannelWalker = void (*)(Arena&, BlockRef channel, ReconcilePass&);

// The words of all blocks as they were at one moment of a recovery pass, and a mark on each that a channel keeps.
class BlockSnapshot {
 public:
  // Notes every word; visit(word) of each besides.
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
  // visit(id, word) of each until one returns false.
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
  OfClass& of_class(unsigned size_class) noexcept { return classes_[size_class - kMinClass]; }
  const OfClass& of_class(unsigned size_class) const noexcept { return classes_[size_class - kMinClass]; }

  OfClass classes_[kClasses];
};

class ReconcilePass {
 public:
  // Blocks of dead writers, taken over: how many of their pages exist is not known.
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
  // True when the pass went through; false when something moved and it has to be repeated.
  Result<bool> run();

  // For the walker.
  const DeadParticipants& dead() const noexcept { return dead_; }
  // The channel keeps this block: it is in its window, in a record, or part of the channel itself.
  void mark(BlockRef ref) noexcept;
  // Takes a channel's lock, also from a dead owner, without looking at `recovery_requests`. A channel whose lock cannot
  // be had may keep anything: after one failure the pass gives nothing up.
  Status lock(std::atomic<std::uint32_t>& word) {
    Status locked = RobustLock(word, parts_.participants).lock(me_, wait_);
    if (!locked && failed_.ok()) failed_ = locked;
    return locked;
  }
  // Something of the channel cannot be mapped: the same.
  void give_up() noexcept { unmapped_ = true; }

 private:
  Status restore_marks();
  bool map_tables() noexcept;
  void take_snapshot();
  void walk_transfers() noexcept;
  Status walk_channels();
  Status walk_channel(BlockRef channel, const BlockEntry& block);

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
