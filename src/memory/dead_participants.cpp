#include "memory/dead_participants.h"

#include "platform/file.h"

namespace shmtree::memory {

using namespace platform;

// A slot counts as dead only if nobody has its lock while neither generation nor status move: a newcomer takes the lock
// first, and one that takes a dead participant's slot says so in the status and holds nothing yet.
bool DeadParticipants::find(const CheckedFd& file) noexcept {
  bool settled = true;
  const std::uint32_t high = participants_.used_slots();
  for (std::uint32_t number = 0; number < high; ++number) {
    const Participant& other = participants_.slot(number);
    Slot& slot = slots_[number];
    slot.status = load_acquire(other.status);
    slot.generation = load_acquire(other.generation);
    const bool locked = !file.is_ours() || byte_is_locked(file.number(), number);
    if (load_acquire(other.generation) != slot.generation || load_acquire(other.status) != slot.status) {
      settled = false;
      continue;
    }
    slot.is_unlocked = !locked;
    const bool stale = slot.status == static_cast<std::uint32_t>(ParticipantStatus::kStale);
    const bool free = slot.status == static_cast<std::uint32_t>(ParticipantStatus::kFree);
    if (!free && (!locked || stale)) masks_[number / 64] |= ParticipantSet::bit_of(number);
  }
  return settled;
}

bool DeadParticipants::is_dead_writer(Identity writer) const noexcept {
  const Slot& slot = slots_[slot_of(writer)];
  const std::uint32_t newer = (generation_of(writer) - slot.generation) & 0xfffffu;
  if (newer == 0) return slot.is_unlocked;
  // An owner of the slot that came after the look; or one before, or bits that no participant wrote.
  return newer > kMaxParticipants;
}

bool DeadParticipants::hold_all_of(const ParticipantSet& set) const noexcept {
  for (std::uint32_t i = 0; i < kParticipantWords; ++i) {
    if ((load_seq_cst(set.words[i]) & ~masks_[i]) != 0) return false;
  }
  return true;
}

void DeadParticipants::free_slots() noexcept {
  const std::uint32_t slots = participants_.used_slots();
  for (std::uint32_t number = 0; number < slots; ++number) {
    Participant& other = participants_.slot(number);
    if (load_relaxed(other.deferred_overflow) != 0) store_relaxed(other.deferred_overflow, 0u);
    if (!contains(number)) continue;
    std::uint32_t status = slots_[number].status;
    const bool stale = status == static_cast<std::uint32_t>(ParticipantStatus::kStale);
    const auto next = stale ? ParticipantStatus::kAttached : ParticipantStatus::kFree;
    compare_swap(other.status, status, static_cast<std::uint32_t>(next));
  }
}

}  // namespace shmtree::memory
