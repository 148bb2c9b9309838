// What must hold after somebody was killed while he put a message, or read one.
#pragma once

#include "support/broadcasts.h"
#include "support/catch2.h"

namespace shmtree::test {

// Others put and read on, nothing is lost, and no block is kept.
inline void require_whole(Ring& ring, std::uint64_t expected_bytes) {
  Arena& arena = *ring.arena();
  arena.participants().check(0);
  arena.reconcile(patience()).value();
  const auto reader = subscribe(ring.shared_from_this());
  for (std::uint64_t i = 0; i < 20; ++i) {
    for (const std::size_t words : {kSmallWords, kBlockWords}) {
      REQUIRE(put(ring, 500 + i, words).ok());
      REQUIRE(next(*reader) == 500 + i);
    }
  }
  reader->close();
  REQUIRE(ring.check() == "");
  REQUIRE(arena.inspector().check() == "");
  REQUIRE(used_bytes(arena) == expected_bytes);
}

}  // namespace shmtree::test
