// Builds by hand the states that killed processes leave in an arena, and runs recovery.
#pragma once

#include "support/arenas.h"
#include "support/catch2.h"

namespace shmtree::test {

// Returns the identity of a killed participant. Recovery has not freed its slot yet.
inline memory::Identity dead_identity(Arena& arena) {
  Gate attached;
  Child child([&] {
    attached.open(arena.current_identity());
    pause();
    return true;
  });
  return static_cast<memory::Identity>(attached.wait());
}

inline void recover(Arena& arena) {
  arena.participants().check(0);
  memory::request_recovery(arena.header());
  REQUIRE(arena.reconcile(patience()).ok());
  REQUIRE(check_arena(arena) == "");
}

// Calls `try_at(change)` for change 1, 2 and so on, until it returns false. `try_at` kills a child before that change,
// and returns true if the child got there.
template <class TryAt>
void try_every_change(TryAt try_at) {
  std::int64_t change = 1;
  for (bool killed = true; killed; ++change) {
    REQUIRE(change < 1'000);
    INFO("killed before change " << change);
    killed = try_at(change);
  }
  REQUIRE(change > 3);
}

inline std::uint64_t holder_bit(memory::Identity holder) {
  return std::uint64_t{1} << (memory::slot_of(holder) % 64);
}

// Returns a live block without pins or references.
inline BlockRef left_live(Arena& arena) {
  OwnedBlock block = new_block(arena);
  block.publish();
  return block.ref();
}

}  // namespace shmtree::test
