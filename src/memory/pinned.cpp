// Arenas of which a process has pages registered for DMA: no pages are taken out of these.
#include <algorithm>

#include "memory/arena.h"
#include "platform/atomics.h"
#include "platform/file.h"

namespace shmtree::memory {

using namespace platform;

// Under the arena lock, which whoever picks victims has: from then on there are none. Those picked before are held by
// nobody, so their pages are not registered before they are free again.
Status Arena::set_pinned(bool pinned, const WaitContext& wait) {
  auto me = identity();
  if (!me) return std::move(me).error();
  Status locked = lock_blocks(wait);
  if (!locked) return locked;
  store_release(participant(slot_of(*me)).pinned, pinned ? generation_of(*me) : 0u);
  unlock_blocks();
  return success();
}

// A slot that has a new owner is not pinned by what the old one left there; that of a dead one is, until a reconcile.
bool Arena::is_pinned() const noexcept {
  const std::uint32_t high = std::min(load_acquire(header().participants_high), kMaxParticipants);
  for (std::uint32_t slot = 0; slot < high; ++slot) {
    const Participant& other = participant(slot);
    const std::uint32_t pinned = load_acquire(other.pinned);
    if (pinned != 0 && pinned == load_acquire(other.generation) && !is_status(slot, ParticipantStatus::kFree))
      return true;
  }
  return false;
}

bool Arena::is_pinned_here() const noexcept {
  const Identity me = current_identity();
  return me != kNobody && load_relaxed(participant(slot_of(me)).pinned) == generation_of(me);
}

// A block whose writer died, perhaps between raising `committed` and the pages: what it has is not known. Its pages go,
// so that the count is right; where none may go, the missing ones come.
void Arena::give_up_unfinished(BlockRef ref) noexcept {
  const BlockEntry* block = entry(ref.id);
  if (block == nullptr) return;
  const std::uint64_t committed = committed_of(*block, ref.id.size_class());
  // Who pins from here on registers what it holds, and nobody holds this one until it was free.
  if (!is_pinned()) {
    give_back(ref, 0, committed);
    return;
  }
  // Where that fails they come when they are written to.
  static_cast<void>(try_commit_pages(fd(), geometry().data_offset(ref.id), committed));
  give_back(ref, committed, 0);
}

// Whether an allocation of `bytes` fails for the pages of free blocks that nobody may take, and no block that could be
// freed meanwhile would do for it.
bool Arena::is_kept_by_pins(std::uint64_t bytes) noexcept {
  if (!is_pinned() || load_acquire(header().used_bytes) + bytes > max_bytes()) return false;
  const unsigned size_class = Geometry::class_for(bytes);
  const std::uint64_t entries = walked_entries(size_class);
  for (std::uint64_t index = 0; index < entries; ++index) {
    const std::uint64_t word = load_acquire(entry(BlockId::make(size_class, index))->word);
    if (state_of(word) != BlockState::kFree) return false;
  }
  return true;
}

}  // namespace shmtree::memory
