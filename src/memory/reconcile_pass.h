// One pass of recovery: docs/recovery.md has the argument, arena.h the order of stores that it relies on.
//
// Invariants:
//   - The pass never stops the arena as a whole. It first notes every block's word, then visits channel by channel,
//     under that channel's locks, where windows and records say what they keep, and only then takes the arena lock.
//   - A block is given up only if it was in use and unchanged from the note to the end, and no channel named it: it
//     cannot have entered a window in between, since a block enters one only once, while its word says writing, and a
//     dead writer's is given up only if the writer was dead before the note.
//   - What cannot be looked at, for want of a lock, memory or addresses, is not taken for absent: the pass then gives
//     nothing up.
//   - It changes the truth only by single stores that are right on their own, so it may be killed anywhere.
#pragma once

#include <vector>

#include "memory/reclaimer.h"

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

// How the layer above repairs a channel and finds what it keeps, and whether an end of it is on its way to somebody.
using ChannelWalker = void (*)(Arena&, BlockRef channel, ReconcilePass&);
using GrantCheck = bool (*)(Arena&, BlockRef channel);

class ReconcilePass {
 public:
  // Blocks of dead writers, taken over: how many of their pages exist is not known.
  using Unfinished = std::vector<BlockRef>;
  ReconcilePass(Arena& arena, const ArenaParts& parts, Identity me, const platform::WaitContext& wait,
                Unfinished& unfinished)
      : arena_(arena), parts_(parts), header_(parts.mapping.header()), me_(me), wait_(wait), unfinished_(unfinished) {}

  static void set_channel_walker(ChannelWalker walker, GrantCheck grants) noexcept;
  // True when the pass went through; false when something moved and it has to be repeated.
  Result<bool> run();

  // For the walker.
  // A participant that has died or exited, or whose slot has a new owner that holds nothing yet.
  bool is_dead(std::uint32_t slot) const noexcept { return dead_[slot]; }
  // Dead, and it had not detached.
  bool was_killed(std::uint32_t slot) const noexcept {
    return dead_[slot] && status_[slot] != static_cast<std::uint32_t>(ParticipantStatus::kDetached);
  }
  // The channel keeps this block: it is in its window, in a record, or part of the channel itself.
  void mark(BlockRef ref) noexcept;
  // Takes a channel's lock, also from a dead owner, without looking at `dirty`. A channel whose lock cannot be had may
  // keep anything: after one failure the pass gives nothing up.
  Status lock(std::atomic<std::uint32_t>& word) {
    Status locked = RobustLock(word, parts_.participants).lock(me_, wait_);
    if (!locked && failed_.ok()) failed_ = locked;
    return locked;
  }
  // Something of the channel cannot be mapped: the same.
  void give_up() noexcept { unmapped_ = true; }

 private:
  Status restore_marks();
  void find_dead() noexcept;
  bool is_dead_writer(Identity writer) const noexcept;
  bool is_held_by_living(const BlockEntry& block) const noexcept;
  bool map_tables() noexcept;
  void note_words();
  Status walk_channels();
  Status walk_channel(BlockRef channel, const BlockEntry& block);

  // Under the arena lock.
  bool rebuild() noexcept;
  void forget_dead_in(BlockId id, BlockEntry& block) noexcept;
  void count_refs() noexcept;
  void free_candidates() noexcept;
  bool is_candidate(BlockId id, std::uint64_t word) const noexcept;
  void free_slots() noexcept;

  // What was noted of a block, by its class and index.
  bool was_noted(BlockId id, std::uint64_t word) const noexcept {
    const auto& words = words_[id.size_class() - kMinClass];
    return id.index() < words.size() && words[id.index()] == word;
  }
  bool is_marked(BlockId id) const noexcept { return marked_[id.size_class() - kMinClass][id.index()] != 0; }

  Arena& arena_;
  const ArenaParts parts_;
  ArenaHeader& header_;
  const Identity me_;
  const platform::WaitContext& wait_;
  Unfinished& unfinished_;
  Status failed_ = success();
  bool unmapped_ = false;
  bool dead_[kMaxParticipants]{};
  std::uint64_t dead_mask_[kParticipantWords]{};
  bool written_by_nobody_[kMaxParticipants]{};  // no living process writes as generations_[slot]
  std::uint32_t generations_[kMaxParticipants]{};
  std::uint32_t status_[kMaxParticipants]{};  // of the dead
  std::vector<std::uint64_t> words_[kClasses];
  std::vector<std::uint8_t> marked_[kClasses];
  std::vector<BlockRef> abandoned_channels_;
};

}  // namespace shmtree::memory
