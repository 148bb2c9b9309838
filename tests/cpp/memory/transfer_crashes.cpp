// Givers and receivers of memory in transit, killed before each store to shared memory. The survivors neither lose the
// memory, nor keep memory without references.
#include "memory/transfers.h"
#include "support/arenas.h"
#include "support/catch2.h"
#include "support/crash_states.h"

#if defined(SHMTREE_CRASH_POINTS)

using namespace shmtree;
using namespace shmtree::test;

namespace {

constexpr int kValue = 7;

std::uint64_t begin(const std::shared_ptr<Arena>& arena, std::uint64_t block) {
  return memory::begin_transfer(arena, block, memory::Transferred::kMemory).value();
}
std::uint64_t in_transit(Arena& arena, std::uint64_t block) {
  return arena.transfers().in_transit(block, memory::Transferred::kMemory).count;
}
// Fills the header's entries, so that the next transfer has to allocate a block for more.
void use_all_places(const std::shared_ptr<Arena>& arena) {
  for (std::uint32_t i = 0; i < memory::kFirstTransfers; ++i) begin(arena, 0);
}

}  // namespace

TEST_CASE("A giver killed in a transfer of memory leaves no reference") {
  const bool needs_places = GENERATE(false, true);
  try_every_change([&](std::int64_t change) {
    const auto arena = new_arena();
    if (needs_places) use_all_places(arena);
    Lease kept = filled_lease(*arena, 5000, kValue);
    const std::uint64_t block = memory::pack(kept.ref());
    const bool killed = killed_at_change(change, [&] {
      const Lease own = arena->hold_existing(kept.ref(), BlockKind::kArray, patience()).value();
      const std::uint64_t number = begin(arena, block);
      begin(arena, block);  // stays in transit
      memory::end_transfer(*arena, block, number);
    });
    recover(*arena);
    REQUIRE(in_transit(*arena, block) == 0);
    REQUIRE(is_filled(kept, kValue));
    const BlockRef ref = kept.ref();
    kept.reset();
    recover(*arena);
    REQUIRE_FALSE(arena->blocks().is_current(ref));
    const std::uint64_t places_bytes = arena->transfers().entries() > memory::kFirstTransfers ? 4096 : 0;
    REQUIRE(used_bytes(*arena) <= places_bytes);
    return killed;
  });
}

TEST_CASE("A killed receiver leaves memory in transit or frees it") {
  try_every_change([&](std::int64_t change) {
    const auto arena = new_arena();
    Lease given = filled_lease(*arena, 5000, kValue);
    const BlockRef ref = given.ref();
    const std::uint64_t block = memory::pack(ref), number = begin(arena, block);
    given.reset();
    const bool killed = killed_at_change(change, [&] {
      Lease received = arena->hold_existing(ref, BlockKind::kArray, patience()).value();
      memory::end_transfer(*arena, block, number);
      received.reset();
    });
    recover(*arena);
    REQUIRE(arena->blocks().is_current(ref) == (in_transit(*arena, block) == 1));
    if (in_transit(*arena, block) == 1) {
      Lease again = arena->hold_existing(ref, BlockKind::kArray, patience()).value();
      REQUIRE(is_filled(again, kValue));
      memory::end_transfer(*arena, block, number);
    }
    recover(*arena);
    REQUIRE_FALSE(arena->blocks().is_current(ref));
    REQUIRE(used_bytes(*arena) == 0);
    memory::sweep_transfers();
    return killed;
  });
}

TEST_CASE("A giver killed in a transfer of an arena leaves no transfer") {
  try_every_change([&](std::int64_t change) {
    const auto arena = new_arena();
    const std::uint64_t kept = begin(arena, 0);
    const bool killed = killed_at_change(change, [&] {
      const std::uint64_t number = begin(arena, 0);
      begin(arena, 0);
      memory::end_transfer(*arena, 0, number);
    });
    recover(*arena);
    REQUIRE(in_transit(*arena, 0) == 1);
    memory::end_transfer(*arena, 0, kept);
    REQUIRE(in_transit(*arena, 0) == 0);
    REQUIRE(used_bytes(*arena) == 0);
    return killed;
  });
}

#endif
