// Givers and receivers of a subscription in transit, killed before each store to shared memory. The subscription stays
// with its giver until it has arrived. It blocks no put once it belongs to no live process.
#include "memory/transfers.h"
#include "support/broadcasts.h"
#include "support/catch2.h"
#include "support/crash_states.h"

#if defined(SHMTREE_CRASH_POINTS)

using namespace shmtree;
using namespace shmtree::test;

namespace {

std::uint64_t begin(Subscriber& reader) {
  const std::uint64_t block = memory::pack(reader.give().value());
  return memory::begin_transfer(reader.ring()->arena(), block, memory::Transferred::kMemory).value();
}
void end(Arena& arena, BlockRef block, std::uint64_t number) {
  memory::end_transfer(arena, memory::pack(block), number);
}
bool is_full(Ring& ring) {
  return put(ring, 9, kSmallWords, no_wait()).code() == Code::kFull;
}

}  // namespace

TEST_CASE("A giver killed in a transfer of a subscription blocks no put") {
  try_every_change([](std::int64_t change) {
    const auto arena = new_arena();
    const auto ring = new_ring({.capacity = 1}, arena);
    const std::uint64_t empty = used_bytes(*arena);
    const bool killed = killed_at_change(change, [&] {
      auto reader = subscribe(ring);
      const BlockRef block = reader->give().value();
      const std::uint64_t number = begin(*reader);
      begin(*reader);  // stays in transit
      reader.reset();
      end(*arena, block, number);
    });
    for (int i = 0; i < 3; ++i) REQUIRE(put(*ring, 1).ok());
    recover(*arena);
    REQUIRE(ring->readers() == 0);
    REQUIRE(check_ring(*ring) == "");
    REQUIRE(used_bytes(*arena) == empty);
    return killed;
  });
}

TEST_CASE("A receiver killed in taking a subscription loses no message") {
  try_every_change([](std::int64_t change) {
    const auto arena = new_arena();
    const auto ring = new_ring({.capacity = 1}, arena);
    const std::uint64_t empty = used_bytes(*arena);
    auto given = subscribe(ring);
    const BlockRef block = given->give().value();
    const std::uint64_t number = begin(*given);
    given.reset();
    put(*ring, 5).value();
    const bool killed = killed_at_change(change, [&] {
      const auto reader = Subscriber::open(arena, block, patience()).value();
      end(*arena, block, number);
    });
    recover(*arena);
    if (arena->transfers().in_transit(memory::pack(block), memory::Transferred::kMemory).count == 1) {
      REQUIRE(is_full(*ring));
      const auto again = Subscriber::open(arena, block, patience()).value();
      end(*arena, block, number);
      REQUIRE(next(*again) == 5);
    }
    for (int i = 0; i < 3; ++i) REQUIRE(put(*ring, 1).ok());
    recover(*arena);
    REQUIRE(ring->readers() == 0);
    REQUIRE(used_bytes(*arena) == empty);
    memory::sweep_transfers();
    return killed;
  });
}

#endif
