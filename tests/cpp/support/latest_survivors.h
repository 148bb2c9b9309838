// What must hold after somebody was killed while he published a version, or read one.
#pragma once

#include "support/catch2.h"
#include "support/latests.h"

namespace shmtree::test {

// Nothing is torn, versions go on from where they were, and no block is lost.
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
  REQUIRE(store.ring()->check() == "");
  REQUIRE(arena.inspector().check() == "");
  REQUIRE(used_bytes(arena) == expected_bytes);
}

}  // namespace shmtree::test
