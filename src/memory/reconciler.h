// One pass of recovery: see docs/recovery.md for the argument, arena.h for the order of stores it relies on.
//
// The pass never stops the arena as a whole. It first notes every block's word, then visits channel by channel under
// that channel's locks, where windows and records say what they keep, and only then takes the arena lock. A block is
// given up only if it was in use and unchanged from the note to the end, and no channel named it: it cannot have
// entered a window in between, since a block enters one only once, while its word says writing, and a dead writer's is
// given up only if the writer was dead before the note.
#pragma once

#include <vector>

#include "memory/arena.h"

namespace shmtree::memory {

class Reconciler {
 public:
  // Blocks of dead writers, taken over: how many of their pages exist is not known.
  using Unfinished = std::vector<BlockRef>;
  Reconciler(Arena& arena, Identity me, const platform::WaitContext& wait, Unfinished& unfinished)
      : arena_(arena), me_(me), wait_(wait), unfinished_(unfinished) {}

  // For the walker of the channel layer.
  // A participant that has died or exited, or whose slot has a new owner that holds nothing yet.
  bool is_dead(std::uint32_t slot) const noexcept { return dead_[slot]; }
  // Dead, and it had not detached.
  bool was_killed(std::uint32_t slot) const noexcept { return killed_[slot]; }
  // The channel keeps this block: it is in its window, in a record, or part of the channel itself.
  void mark(BlockRef ref) noexcept;
  // Takes a channel's lock, also from a dead owner, without looking at `dirty`. A channel whose lock cannot be had may
  // keep anything: after one failure the pass gives nothing up.
  Status lock(std::atomic<std::uint32_t>& word) {
    Status locked = arena_.lock_raw(word, me_, wait_);
    if (!locked && failed_.ok()) failed_ = locked;
    return locked;
  }
  // Something of the channel cannot be mapped: the same.
  void give_up() noexcept { unmapped_ = true; }

 private:
  friend class Arena;
  // True when the pass went through; false when something moved and it has to be repeated.
  Result<bool> run();
  Status restore_marks();
  void find_dead() noexcept;
  bool is_dead_writer(Identity writer) const noexcept;
  static Error no_address_space();
  bool map_tables() noexcept;
  void note_words();
  Status walk_channels();
  bool rebuild() noexcept;
  bool abandoned_channel_was_opened() noexcept;
  void forget_dead_in(BlockId id, BlockEntry& entry) noexcept;
  void count_refs() noexcept;
  void rebuild_lists() noexcept;
  std::uint64_t recount_held(BlockEntry& entry, std::uint32_t epoch) noexcept;
  void free_candidates() noexcept;
  bool is_candidate(unsigned size_class, std::uint64_t index, const BlockEntry& entry) const noexcept;
  template <class Visit>
  void for_each(Visit visit) noexcept;

  Arena& arena_;
  Identity me_;
  const platform::WaitContext& wait_;
  Unfinished& unfinished_;
  Status failed_ = success();
  bool unmapped_ = false;
  bool dead_[kMaxParticipants]{};
  bool killed_[kMaxParticipants]{};
  std::uint64_t dead_mask_[kParticipantWords]{};
  bool written_by_nobody_[kMaxParticipants]{};  // no living process writes as generations_[slot]
  std::uint32_t generations_[kMaxParticipants]{};
  std::uint32_t dead_status_[kMaxParticipants]{};
  std::vector<std::uint64_t> words_[kClasses];
  std::vector<std::uint8_t> marked_[kClasses];
  std::vector<BlockRef> abandoned_channels_;
};

}  // namespace shmtree::memory
