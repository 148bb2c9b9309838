// What the killed leave behind in an arena, built by hand, and the recovery from it.
#pragma once

#include "support/arenas.h"
#include "support/catch2.h"

namespace shmtree::test {

// A participant that was killed: its slot is not swept yet.
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
  REQUIRE(arena.inspector().check() == "");
}

// Calls `try_at(change)`, which is to kill a child before that change and says whether it did, until it did not.
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

inline std::uint64_t holder_bit(memory::Identity who) {
  return std::uint64_t{1} << (memory::slot_of(who) % 64);
}

// A live block that nobody keeps.
inline BlockRef left_live(Arena& arena) {
  OwnedBlock block = new_block(arena);
  block.publish();
  return block.ref();
}

}  // namespace shmtree::test
