// A Latest with a version in block 0. Its publisher replaces it with a version in block 1.
#pragma once

#include "broadcast_ring.h"

namespace model {

constexpr std::uint32_t kPublisher = 0, kReader = 1;
constexpr std::uint64_t kOld = 0, kNew = 1;  // tickets of the two versions, and indexes of their blocks

inline void set_up_latest() {
  for (const std::uint32_t slot : {kPublisher, kReader}) {
    set_up(slot);
    set_up_ring(slot, broadcast::kLatestUse);
  }
  for (const std::uint64_t block : {kOld, kNew}) {
    set_up_block(block, BlockKind::kPublished);
    data[block][0] = 42;
  }
  put_block(kPublisher, block_ref(kOld));
}

inline void publish() {
  Ring& ring = *rings[kPublisher];
  const auto locks = ring.lock_and_repair(Ring::Locks::kArenaAndRing, {});
  put_block(kPublisher, block_ref(kNew));
  ring.unlock(*locks);
}

inline void read(std::uint64_t version) {
  std::uint64_t bytes = 0;
  const auto held = rings[kReader]->read_block(version, &bytes);
  if (!held) return;
  MODEL_ASSERT(bytes == 8 && data[version][0] == 42 && "a reader uses a block that was freed");
  arena_of(kReader).holders().end_lease(block_ref(version), 0);
}

// Call it after all threads have ended.
inline void check_old_is_free() {
  MODEL_ASSERT((state_of(table[kOld].word.load()) == BlockState::kFree || needs_recovery(header())) &&
               "no process has the block, and it is not free");
}

}  // namespace model
