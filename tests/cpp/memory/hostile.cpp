// A process that writes into the arena's control words while others use them. Calls may return wrong values, but never
// access memory outside of the arena, loop forever or commit memory that was not requested.
#include "support/arenas.h"
#include "support/catch2.h"
#include "support/flips.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

constexpr std::uint64_t kMinusOne = ~std::uint64_t{0};

memory::ClassState& class_of(Arena& arena, unsigned size_class) {
  return arena.header().classes[size_class - memory::kMinClass];
}

}  // namespace

// guarantee: damaged-words
TEST_CASE("trim ends if committed_bytes is impossibly large") {
  auto arena = new_arena();
  new_block(*arena, 5000).abandon();
  for (const std::uint64_t value : {kMinusOne, kMinusOne - 4000, kMinusOne << 12}) {
    arena->header().committed_bytes = value;
    Child child([&] {
      arena->allocator().trim();
      return true;
    });
    CHECK(child.succeeded());
  }
}

TEST_CASE("Inspecting an arena with damaged marks commits no memory") {
  auto arena = new_arena(memory::round_up(std::uint64_t{8} << 30, memory::kPageBytes));
  const Lease held = new_lease(*arena, 5000);
  const std::uint64_t before = file_pages_bytes(*arena);
  for (unsigned k = memory::kMinClass; k <= arena->blocks().geometry().max_class(); ++k) {
    class_of(*arena, k).high = kMinusOne;
    class_of(*arena, k).table_committed = kMinusOne;
  }
  CHECK(arena->inspector().stats().blocks == 1);
  CHECK(arena->inspector().holders().size() == 1);
  CHECK_FALSE(check_arena(*arena).empty());
  CHECK(file_pages_bytes(*arena) < before + kMiB);
  memory::request_recovery(arena->header());
  REQUIRE(arena->reconcile(patience()).ok());
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("Impossible counts are rebuilt before a block is refused") {
  for (const std::uint64_t value : {kMinusOne, std::uint64_t{1} << 62}) {
    auto arena = new_arena();
    arena->header().used_bytes = value;
    arena->header().committed_bytes = value;
    CHECK(arena->allocate(5000, BlockKind::kMessage, no_wait()).ok());
  }
}

TEST_CASE("A watermark that is too low hands out no block twice") {
  auto arena = new_arena();
  const Lease held = new_lease(*arena, 5000);
  std::memset(held.data(), 7, 5000);
  class_of(*arena, 13).high = 0;
  const OwnedBlock other = new_block(*arena, 5000);
  CHECK(other.ref().id != held.ref().id);
  CHECK(arena->blocks().is_current(held.ref()));
}

TEST_CASE("Allocation works with a watermark beyond the table") {
  auto arena = new_arena();
  for (const std::uint64_t value : {kMinusOne, std::uint64_t{1} << 33, std::uint64_t{1} << 40}) {
    class_of(*arena, 13).high = value;
    class_of(*arena, 13).table_committed = kMinusOne;
    const OwnedBlock block = new_block(*arena, 5000);
    CHECK(block.ref().id.size_class() == 13);
  }
}

TEST_CASE("A damaged size makes no lease longer than its block") {
  auto arena = new_arena();
  const Lease held = new_lease(*arena, 5000);
  arena->blocks().entry(held.ref().id)->size = kMinusOne;
  const Lease again = arena->hold_existing(held.ref(), BlockKind::kArray, patience()).value();
  CHECK(again.bytes() == 8192);
}

TEST_CASE("A flipping committed word releases no pages of other blocks") {
  auto arena = new_arena();
  const Lease neighbour = [&] {
    new_block(*arena, 5000).abandon();
    OwnedBlock first = new_block(*arena, 5000);
    return new_lease(*arena, 5000);
  }();
  std::memset(neighbour.data(), 7, 5000);
  BlockEntry& victim = *arena->blocks().entry(BlockId::make(13, 0));
  REQUIRE(neighbour.ref().id == BlockId::make(13, 1));
  const Flips flips(victim.committed, {8192, 16384, kMinusOne});
  for (int i = 0; i < 2000; ++i) {
    arena->allocator().trim();
    auto block = arena->allocate(5000, BlockKind::kMessage, no_wait());
  }
  CHECK(neighbour.data()[4999] == std::byte{7});
}

// guarantee: changing-words
TEST_CASE("Free lists that flip during use never lead out of the table") {
  auto arena = new_arena();
  new_block(*arena, 5000).abandon();
  memory::ClassState& state = class_of(*arena, 13);
  Child child([&] {
    const Flips warm(state.warm, {0, 1, 2, kMinusOne, std::uint64_t{1} << 32});
    const Flips cold(state.cold, {0, kMinusOne, 1, std::uint64_t{13} << 32});
    for (int i = 0; i < 2000; ++i) {
      arena->allocate(5000, BlockKind::kMessage, no_wait()).ok();
      arena->allocator().trim();
    }
    return true;
  });
  CHECK(child.succeeded());
}

TEST_CASE("A corrupted resting queue never leads outside the table") {
  auto arena = new_arena();
  for (int i = 0; i < 10; ++i) new_lease(*arena, 5000);
  memory::ClassState& state = class_of(*arena, 13);
  Child child([&] {
    const Flips first(state.resting_first, {0, 1, 2, kMinusOne, std::uint64_t{1} << 32});
    const Flips last(state.resting_last, {0, 3, kMinusOne, std::uint64_t{1} << 32});
    const Flips count(state.resting_count, {0, 1, 600, kMinusOne});
    for (int i = 0; i < 2000; ++i) {
      auto block = arena->allocate(5000, BlockKind::kArray, no_wait());
      if (block) arena->hold_new(std::move(*block)).ok();
    }
    return true;
  });
  CHECK(child.succeeded());
}

TEST_CASE("A reference list that changes while read stays in bounds") {
  auto arena = new_arena();
  const Lease held = new_lease(*arena, 5000);
  OwnedBlock message = new_block(*arena, 5000);
  const BlockRef list[] = {held.ref()};
  REQUIRE(arena->holders().refer(message, list, patience()).ok());
  const Lease reader = arena->hold_new(std::move(message)).value();
  BlockEntry& entry = *arena->blocks().entry(reader.ref().id);
  auto& item = *reinterpret_cast<memory::ListEntry*>(reader.data() + entry.list_offset.load());
  Child child([&] {
    const Flips offsets(entry.list_offset, {entry.list_offset.load(), kMinusOne - 7, 8, 1 << 20});
    const Flips ids(as_atomic(item.id), {item.id, kMinusOne, 0, std::uint64_t{63} << 32});
    for (int i = 0; i < 20'000; ++i) {
      for (const BlockRef& ref : arena->blocks().referred_to_by(reader.ref())) {
        if (!arena->blocks().geometry().contains(ref.id)) return false;
      }
      if (i % 100 == 0) static_cast<void>(check_arena(*arena));
      if (i % 100 == 0) memory::request_recovery(arena->header());
      if (i % 100 == 0) arena->reconcile(patience()).ok();
    }
    return true;
  });
  CHECK(child.succeeded());
}
