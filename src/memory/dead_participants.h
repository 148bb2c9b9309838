// Who was dead when a recovery pass began.
#pragma once

#include "memory/participants.h"

namespace shmtree::memory {

class DeadParticipants {
 public:
  explicit DeadParticipants(Participants& participants) noexcept : participants_(participants) {}

  // Looks at every slot. False when one changes hands meanwhile: the next pass sees who has it.
  bool find(const platform::CheckedFd& file) noexcept;

  // A participant that has died or exited, or whose slot has a new owner that holds nothing yet.
  bool contains(std::uint32_t slot) const noexcept { return (masks_[slot / 64] & ParticipantSet::bit_of(slot)) != 0; }
  // The bits of the dead in a word of a set.
  std::uint64_t mask(std::uint32_t word) const noexcept { return masks_[word]; }
  // Dead, and it had not detached.
  bool was_killed(std::uint32_t slot) const noexcept {
    return contains(slot) && slots_[slot].status != static_cast<std::uint32_t>(ParticipantStatus::kDetached);
  }
  // Whether the writer was dead then. One that died since may have published the block after its channel was walked;
  // its own death brings the next pass.
  bool is_dead_writer(Identity writer) const noexcept;
  bool hold_all_of(const ParticipantSet& set) const noexcept;
  // Their slots become free; a stale one is swept now, and its new owner's.
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

}  // namespace shmtree::memory
