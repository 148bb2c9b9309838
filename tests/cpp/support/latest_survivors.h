// Checks a Latest after a process was killed while it published or read a version.
#pragma once

#include "support/catch2.h"
#include "support/latests.h"

namespace shmtree::test {

// Requires that no version is torn, that version numbers continue, and that no block is lost.
inline void require_whole(LatestStore& store, std::uint64_t least, std::uint64_t most, std::uint64_t expected_bytes) {
  Arena& arena = *store.arena();
  const std::uint64_t newest = store.version();
  REQUIRE((least <= newest && newest <= most));
  for (std::uint64_t version = newest; version + store.history() >= newest && version != 0; --version) {
    REQUIRE(value_at(store, version) == version);
  }
  arena.participants().check(0);
  arena.reconcile(patience()).value();
  REQUIRE(store.version() == newest);
  for (std::uint64_t version = newest + 1; version <= newest + 3; ++version) {
    REQUIRE(publish(store, version).value() == version);
    REQUIRE(value_at(store, version) == version);
  }
  REQUIRE(check_ring(*store.ring()) == "");
  REQUIRE(check_arena(arena) == "");
  REQUIRE(used_bytes(arena) == expected_bytes);
}

}  // namespace shmtree::test
