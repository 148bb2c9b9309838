// Pages that a process registered for DMA stay in place, even if other processes free memory. Also blocks with several
// holders.
#include <string>
#include <vector>

#include "support/arenas.h"
#include "support/catch2.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

// A process that has pinned the arena, and waits until the test releases or kills it.
struct Pinner {
  Gate pinned, told;
  Child child;
  explicit Pinner(Arena& arena, bool unpins = true)
      : child([&] {
          if (!arena.allocator().set_pinned(true, patience()).ok()) return false;
          pinned.open(1);
          told.wait();
          return !unpins || arena.allocator().set_pinned(false, patience()).ok();
        }) {
    pinned.wait();
  }
};

bool is_shared(Arena& arena, const Lease& lease) {
  return arena.holders().is_shared(lease.ref(), patience()).value();
}

}  // namespace

TEST_CASE("No process releases pages while the arena is pinned") {
  auto arena = new_arena();
  { const Lease lease = new_lease(*arena, 3 * kMiB); }
  const std::uint64_t pages = file_pages_bytes(*arena);

  REQUIRE(arena->allocator().set_pinned(true, patience()).ok());
  CHECK(arena->participants().is_pinned());
  CHECK(arena->participants().is_pinned_here());
  CHECK(arena->allocator().trim() == 0);
  CHECK(Child([&] {
          return arena->participants().is_pinned() && !arena->participants().is_pinned_here() &&
                 arena->allocator().trim() == 0;
        }).succeeded());
  CHECK(file_pages_bytes(*arena) >= pages);

  REQUIRE(arena->allocator().set_pinned(false, patience()).ok());
  CHECK_FALSE(arena->participants().is_pinned());
  CHECK(arena->allocator().trim() == 3 * kMiB);
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("A pin of another process holds until it unpins") {
  auto arena = new_arena();
  { const Lease lease = new_lease(*arena, kMiB); }
  Pinner other(*arena);
  CHECK(arena->participants().is_pinned());
  CHECK_FALSE(arena->participants().is_pinned_here());
  CHECK(arena->allocator().trim() == 0);
  other.told.open(1);
  REQUIRE(other.child.succeeded());
  CHECK(arena->allocator().trim() == kMiB);
}

TEST_CASE("The next trim ends the pin of a dead process") {
  const bool is_killed = GENERATE(true, false);
  auto arena = new_arena();
  { const Lease lease = new_lease(*arena, kMiB); }
  {
    Pinner other(*arena, false);
    if (!is_killed) {
      other.told.open(1);
      REQUIRE(other.child.succeeded());
    }
  }
  CHECK(arena->allocator().trim() == kMiB);
  CHECK_FALSE(arena->participants().is_pinned());
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("The next owner of a slot does not inherit its pin") {
  auto arena = new_arena();
  { Pinner other(*arena, false); }
  CHECK(Child([&] { return !arena->participants().is_pinned_here(); }).succeeded());
  CHECK(arena->identity().ok());
  arena->participants().check(0);
  REQUIRE(arena->reconcile(patience()).ok());
  CHECK_FALSE(arena->participants().is_pinned());
}

TEST_CASE("A pinned arena keeps the pages of a dead writer") {
  auto arena = new_arena();
  BlockRef ref{};
  { ref = new_block(*arena, kMiB).ref(); }
  std::byte* data = arena->blocks().address(ref.id);
  REQUIRE(arena->allocator().set_pinned(true, patience()).ok());
  data[5000] = std::byte{77};  // a device would read these bytes

  Gate writing;
  Child writer([&] {
    const OwnedBlock block = new_block(*arena, kMiB);
    writing.open(block.ref().id == ref.id);
    pause();
    return true;
  });
  REQUIRE(writing.wait() == 1);
  writer.kill_and_wait();
  arena->participants().check(0);
  REQUIRE(arena->reconcile(patience()).ok());

  CHECK(data[5000] == std::byte{77});
  CHECK(arena->blocks().entry(ref.id)->committed.load() == kMiB);
  CHECK(used_bytes(*arena) == 0);
  CHECK(check_arena(*arena) == "");
  const OwnedBlock again = new_block(*arena, kMiB);
  CHECK(again.ref().id == ref.id);
  CHECK_FALSE(again.cold());
}

TEST_CASE("No class of a pinned arena grows for resting blocks") {
  auto arena = new_arena();
  REQUIRE(arena->allocator().set_pinned(true, patience()).ok());
  for (int i = 0; i < 20; ++i) new_lease(*arena, 100'000);
  CHECK(arena->inspector().stats().committed_bytes == memory::round_up(100'000, platform::page_size()));
}

TEST_CASE("An out-of-memory error reports that the arena is pinned") {
  auto arena = new_arena(8 * kMiB);
  { const Lease lease = new_lease(*arena, 6 * kMiB); }
  REQUIRE(arena->allocator().set_pinned(true, patience()).ok());
  const auto block = arena->allocate(3 * kMiB, BlockKind::kMessage, no_wait());
  REQUIRE_FALSE(block.ok());
  CHECK(block.code() == Code::kOutOfSharedMemory);
  CHECK(block.error().message.find("pinned") != std::string::npos);
  REQUIRE(arena->allocator().set_pinned(false, patience()).ok());
  CHECK(arena->allocate(3 * kMiB, BlockKind::kMessage, no_wait()).ok());
}

TEST_CASE("A block is shared while referenced or pinned by others") {
  auto arena = new_arena();
  const Lease token = new_lease(*arena);
  CHECK_FALSE(is_shared(*arena, token));
  {
    OwnedBlock message = new_block(*arena);
    const std::vector<BlockRef> referred{token.ref()};
    REQUIRE(arena->holders().refer(message, referred, patience()).ok());
    CHECK(is_shared(*arena, token));
  }
  CHECK_FALSE(is_shared(*arena, token));

  Gate holds, told;
  Child other([&] {
    const bool held = arena->hold_existing(token.ref(), BlockKind::kArray, patience()).ok();
    auto lease = arena->hold_existing(token.ref(), BlockKind::kArray, patience());
    holds.open(held && lease.ok());
    told.wait();
    return true;
  });
  REQUIRE(holds.wait() == 1);
  CHECK(is_shared(*arena, token));
  other.kill_and_wait();
  REQUIRE(arena->participants().check(0));
  CHECK_FALSE(is_shared(*arena, token));
}

TEST_CASE("A pinned arena refuses a block despite queued messages") {
  auto arena = new_arena();
  { const Lease lease = new_lease(*arena, 12 * kMiB); }
  REQUIRE(arena->allocator().set_pinned(true, patience()).ok());
  // in use, and not pinned by any process, like a message in transit
  const OwnedBlock queued = new_block(*arena, 4096);
  const auto block = arena->allocate(4 * kMiB, BlockKind::kArray, WaitContext{});
  REQUIRE_FALSE(block.ok());
  REQUIRE(block.code() == Code::kOutOfSharedMemory);
  REQUIRE(block.error().message.find("pinned") != std::string::npos);
  REQUIRE(arena->allocator().set_pinned(false, patience()).ok());
  REQUIRE(arena->allocate(4 * kMiB, BlockKind::kArray, no_wait()).ok());
}
