// Optimistic pins: the bit is set on the block before it is known that the block is the right one.
#include "support/arenas.h"
#include "support/catch2.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

std::size_t holders_of(Arena& arena, BlockId id) {
  std::size_t count = 0;
  arena.blocks().entry(id)->holders.for_each([&](std::uint32_t) { ++count; });
  return count;
}

}  // namespace

TEST_CASE("hold_while pins a block that the word still names") {
  const auto arena = new_arena();
  Lease kept = filled_lease(*arena, 4096, 3);
  const std::atomic<std::uint64_t> word{5};
  Lease held = arena->hold_while(kept.ref(), word, 5).value();
  kept.reset();
  CHECK(is_filled(held, 3));
  CHECK(used_bytes(*arena) == 4096);
  held.reset();
  CHECK(used_bytes(*arena) == 0);
}

// guarantee: latest-pins
TEST_CASE("hold_while fails on a stale block and loses no other pin") {
  const auto arena = new_arena();
  const std::atomic<std::uint64_t> word{5};
  const BlockRef old = new_block(*arena).ref();
  CHECK(arena->hold_while(old, word, 4).code() == Code::kNotFound);  // the block is free
  CHECK(holders_of(*arena, old.id) == 0);
  const Lease later = filled_lease(*arena, 4096, 7);  // the same block, in another use
  REQUIRE(later.ref().id == old.id);
  CHECK(arena->hold_while(old, word, 4).code() == Code::kNotFound);
  CHECK(arena->hold_while(later.ref(), word, 4).code() == Code::kNotFound);
  // the block is ours, but in another use, so the word does not matter
  CHECK(arena->hold_while(old, word, 5).code() == Code::kNotFound);
  CHECK(holders_of(*arena, old.id) == 1);
  overfill(*arena);
  CHECK(is_filled(later, 7));
}

TEST_CASE("A failed hold_while keeps a pin that was set in advance") {
  const auto arena = new_arena();
  const std::atomic<std::uint64_t> word{5};
  const BlockRef old = new_block(*arena).ref();
  OwnedBlock block = new_block(*arena);
  REQUIRE(block.ref().id == old.id);
  arena->holders().hold_for(block.ref(), arena->current_identity());
  block.publish();
  CHECK(arena->hold_while(old, word, 4).code() == Code::kNotFound);
  CHECK(holders_of(*arena, old.id) == 1);
}

// guarantee: latest-pins
TEST_CASE("Undoing an optimistic pin frees a block released meanwhile") {
  const auto arena = new_arena();
  const std::uint64_t before = used_bytes(*arena);
  for (const BlockKind kind : {BlockKind::kArray, BlockKind::kPublished, BlockKind::kMessage}) {
    Lease lease = arena->hold_new(new_block(*arena, 4096, kind)).value();
    const BlockRef ref = lease.ref();
    memory::ParticipantSet& holders = arena->blocks().entry(ref.id)->holders;
    const std::uint32_t other = arena->header().participants_high;
    holders.add(other);
    lease.reset();  // sees the bit, and leaves the block
    CHECK(used_bytes(*arena) == before + 4096);
    holders.remove(other);
    arena->reclaimer().collect_after_failed_pin(ref.id);
    if (kind == BlockKind::kMessage) CHECK(memory::needs_recovery(arena->header()));
    arena->reconcile(patience()).value();
    CHECK(used_bytes(*arena) == before);
  }
}

TEST_CASE("Undoing an optimistic pin does not free a queued message") {
  const auto arena = new_arena();
  const Lease channel = Window::create(*arena);
  Window& window = Window::of(*arena, channel.ref());
  OwnedBlock block = new_block(*arena);
  const BlockRef ref = block.ref();
  REQUIRE(window.put(*arena, std::move(block)));
  arena->reclaimer().collect_after_failed_pin(ref.id);
  CHECK(arena->blocks().is_current(ref));
  arena->reconcile(patience()).value();
  CHECK(window.get(*arena) == ref);
}
