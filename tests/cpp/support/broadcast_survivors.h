// Checks a Broadcast after a process was killed while it put or read a message.
#pragma once

#include "support/broadcasts.h"
#include "support/catch2.h"

namespace shmtree::test {

// Requires that other processes can put and read, that no message is lost, and that no block stays allocated.
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
  REQUIRE(check_ring(ring) == "");
  REQUIRE(check_arena(arena) == "");
  REQUIRE(used_bytes(arena) == expected_bytes);
}

}  // namespace shmtree::test
