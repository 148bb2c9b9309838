// Pins: which processes keep a block, across forks, and releases that never block.
#include <sys/syscall.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "support/arenas.h"
#include "support/catch2.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

// Returns a block with a list that is the only reference to the `referred` blocks.
Lease message_with(Arena& arena, const std::vector<BlockRef>& referred) {
  OwnedBlock message = new_block(arena, 4096);
  if (!arena.holders().refer(message, referred, patience()).ok()) std::abort();
  return arena.hold_new(std::move(message)).value();
}

}  // namespace

TEST_CASE("A block is freed only when its last lease is released") {
  auto arena = new_arena();
  Lease first = new_lease(*arena);
  Lease second = arena->hold_existing(first.ref(), BlockKind::kArray, patience()).value();
  CHECK(arena->holders().lease_count() == 2);
  first.reset();
  CHECK(used_bytes(*arena) == 4096);
  second.reset();
  CHECK(used_bytes(*arena) == 0);
  CHECK(arena->holders().lease_count() == 0);
}

TEST_CASE("A moved lease counts as one lease") {
  auto arena = new_arena();
  Lease first = new_lease(*arena);
  Lease second = std::move(first);
  CHECK_FALSE(first.valid());
  CHECK(arena->holders().lease_count() == 1);
  second = Lease{};
  CHECK(used_bytes(*arena) == 0);
}

TEST_CASE("A lease keeps its arena alive") {
  Lease lease = filled_lease(*new_arena(), 5000, 3);
  CHECK(is_filled(lease, 3));
}

TEST_CASE("A freed block cannot be pinned by its old reference") {
  auto arena = new_arena();
  const BlockRef old = new_block(*arena).ref();
  const Lease other = new_lease(*arena);
  REQUIRE(other.ref().id == old.id);
  CHECK(arena->hold_existing(old, BlockKind::kArray, patience()).code() == Code::kNotFound);
}

// guarantee: forged-handles
TEST_CASE("A refused pin of another kind frees no block") {
  const auto kind = GENERATE(BlockKind::kMessage, BlockKind::kSegment, BlockKind::kDeliveries, BlockKind::kPublished,
                             BlockKind::kExtent);
  const auto asked = GENERATE(BlockKind::kArray, BlockKind::kChannel, BlockKind::kReplay, BlockKind::kLatest,
                              BlockKind::kBroadcast, BlockKind::kSubscription);
  auto arena = new_arena();
  OwnedBlock block = new_block(*arena, 4096, kind);
  const BlockRef queued = block.ref();
  block.publish();  // only the window of a channel keeps it, which no bit and no count shows
  CHECK(arena->hold_existing(queued, asked, patience()).code() == Code::kIncompatible);
  CHECK(arena->blocks().is_current(queued));
  CHECK(used_bytes(*arena) == 4096);
}

TEST_CASE("An invalid block reference is not found") {
  auto arena = new_arena();
  for (const std::uint64_t id : {std::uint64_t{0}, ~std::uint64_t{0}, BlockId::make(12, 0x3fffffff).value,
                                 BlockId::make(42, 0).value, BlockId::make(12, 5).value}) {
    CHECK(arena->hold_existing(BlockRef{BlockId{id}, 1}, BlockKind::kArray, patience()).code() == Code::kNotFound);
  }
}

TEST_CASE("Two processes pin one block and either may release it first") {
  auto arena = new_arena();
  for (const bool child_first : {true, false}) {
    Lease lease = filled_lease(*arena, 5000, 9);
    Gate held, go;
    Child child([&] {
      Lease mine = arena->hold_existing(lease.ref(), BlockKind::kArray, patience()).value();
      lease.reset();
      held.open();
      go.wait();
      return is_filled(mine, 9);
    });
    held.wait();
    if (child_first) {
      go.open();
      REQUIRE(child.succeeded());
      CHECK(is_filled(lease, 9));
      lease.reset();
    } else {
      lease.reset();
      CHECK(used_bytes(*arena) == 8192);
      overfill(*arena);
      go.open();
      REQUIRE(child.succeeded());
    }
    arena->participants().check(0);
    REQUIRE(arena->reconcile(patience()).ok());
    CHECK(used_bytes(*arena) == 0);
    CHECK(check_arena(*arena) == "");
  }
}

TEST_CASE("A redelivered block stays pinned when its first view ends") {
  auto arena = new_arena();
  Lease view = new_lease(*arena);
  arena->holders().begin(view.ref(), arena->identity().value());  // as a redelivery does
  const BlockRef ref = view.ref();
  view.reset();
  CHECK(arena->blocks().is_current(ref));
  const Lease again = adopt_hold(*arena, ref).value();
  CHECK(used_bytes(*arena) == 4096);
}

TEST_CASE("Dropping a copied message keeps the pin of an earlier view") {
  auto arena = new_arena();
  const Lease view = new_lease(*arena);
  arena->holders().begin(view.ref(), arena->identity().value());
  arena->holders().drop(view.ref());
  CHECK(arena->blocks().is_current(view.ref()));
  CHECK(arena->inspector().holders().size() == 1);
}

TEST_CASE("A release does not block and the lock owner frees the block") {
  auto arena = new_arena();
  Lease lease = new_lease(*arena);
  Gate locked, go, unlocked, end;
  Child child([&] {
    lease.reset();
    if (!arena->reconciler().lock_arena(patience()).ok()) return false;
    locked.open();
    go.wait();
    arena->reclaimer().unlock();
    unlocked.open();
    end.wait();
    return true;
  });
  locked.wait();
  lease.reset();  // a blocking release would hang here while the child has the lock
  CHECK(used_bytes(*arena) == 4096);
  go.open();
  unlocked.wait();
  CHECK(used_bytes(*arena) == 0);
  end.open();
  CHECK(child.succeeded());
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("Recovery frees a block released while the lock owner died") {
  auto arena = new_arena();
  Lease lease = new_lease(*arena);
  Gate locked;
  Child child([&] {
    lease.reset();
    if (!arena->reconciler().lock_arena(patience()).ok()) return false;
    locked.open();
    pause();
    return true;
  });
  locked.wait();
  lease.reset();
  child.kill_and_wait();
  const OwnedBlock block = new_block(*arena);
  CHECK(used_bytes(*arena) == 4096);
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("Frees that overflow the deferred-free list are all done") {
  auto arena = new_arena();
  std::vector<Lease> leases;
  for (int i = 0; i < 300; ++i) leases.push_back(new_lease(*arena));
  Gate locked, go;
  Child child([&] {
    leases.clear();
    if (!arena->reconciler().lock_arena(patience()).ok()) return false;
    locked.open();
    go.wait();
    arena->reclaimer().unlock();
    return true;
  });
  locked.wait();
  leases.clear();
  // the list overflowed: the next process that locks the arena scans all blocks
  CHECK(memory::needs_recovery(arena->header()));
  go.open();
  REQUIRE(child.succeeded());
  new_block(*arena).abandon();
  CHECK(used_bytes(*arena) == 0);
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("Blocks that a message refers to live as long as it does") {
  auto arena = new_arena();
  Lease first = filled_lease(*arena, 5000, 1), second = filled_lease(*arena, 5000, 2);
  Lease message = message_with(*arena, {first.ref(), second.ref()});
  const BlockRef one = first.ref(), two = second.ref();
  first.reset();
  second.reset();
  CHECK(arena->blocks().is_current(one));
  CHECK(arena->blocks().is_current(two));
  CHECK(arena->blocks().referred_to_by(message.ref()).size() == 2);
  CHECK(check_arena(*arena) == "");
  message.reset();
  CHECK(used_bytes(*arena) == 0);
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("A block referenced twice by a message is freed with it") {
  auto arena = new_arena();
  Lease array = new_lease(*arena);
  Lease message = message_with(*arena, {array.ref(), array.ref()});
  array.reset();
  CHECK(check_arena(*arena) == "");
  message.reset();
  CHECK(used_bytes(*arena) == 0);
}

TEST_CASE("A block that two messages refer to outlives the first") {
  auto arena = new_arena();
  Lease array = new_lease(*arena);
  Lease one = message_with(*arena, {array.ref()}), other = message_with(*arena, {array.ref()});
  array.reset();
  one.reset();
  CHECK(used_bytes(*arena) == 8192);
  other.reset();
  CHECK(used_bytes(*arena) == 0);
}

TEST_CASE("A chain of references is freed to its end") {
  auto arena = new_arena();
  Lease last = new_lease(*arena);
  for (int i = 0; i < 500; ++i) last = message_with(*arena, {last.ref()});
  CHECK(arena->inspector().stats().blocks == 501);
  last.reset();
  CHECK(arena->inspector().stats().blocks == 0);
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("A pinned block outlives the message that referred to it") {
  auto arena = new_arena();
  Lease array = filled_lease(*arena, 5000, 7);
  Lease message = message_with(*arena, {array.ref()});
  message.reset();
  overfill(*arena);
  CHECK(is_filled(array, 7));
}

TEST_CASE("Held bytes are counted once for any number of holders") {
  auto arena = new_arena();
  const Lease lease = new_lease(*arena, 5000);
  const Lease again = arena->hold_existing(lease.ref(), BlockKind::kArray, patience()).value();
  CHECK(arena->pool().held_bytes() == 8192);
  Gate held, go;
  Child child([&] {
    held.open();
    go.wait();
    return true;
  });
  held.wait();
  CHECK(arena->pool().held_bytes() == 8192);
  go.open();
}

TEST_CASE("Concurrent allocations and releases survive forks") {
  auto arena = new_arena(64 * kMiB);
  std::atomic<bool> good{true};
  const int rounds = kThreadSanitizer || under_valgrind() ? 300 : 3000;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<Lease> kept;
      std::uint64_t random = static_cast<std::uint64_t>(t) + 1;
      for (int i = 0; i < rounds; ++i) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const std::uint64_t bytes = random >> 33 & 0xffff;
        Lease lease = new_lease(*arena, bytes + 8);
        const auto mark = static_cast<std::uint64_t>(t) << 32 | static_cast<std::uint64_t>(i);
        std::memcpy(lease.data(), &mark, 8);
        kept.push_back(arena->hold_existing(lease.ref(), BlockKind::kArray, patience()).value());
        std::uint64_t seen = 0;
        std::memcpy(&seen, kept.back().data(), 8);
        if (seen != mark) good = false;
        if (kept.size() > 8) kept.erase(kept.begin());
      }
    });
  }
  for (int i = 0; i < 10; ++i) {
    Child child([&] { return arena->holders().lease_count() < 100; });
    if (!child.succeeded()) good = false;
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(good);
  arena->participants().check(0);
  REQUIRE(arena->reconcile(patience()).ok());
  CHECK(used_bytes(*arena) == 0);
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("The table of holds behaves like a map") {
  memory::HoldCounts table;
  std::vector<bool> model(2000, false);
  std::uint64_t random = 12345;
  INFO("seed 12345");
  for (int i = 0; i < 40'000; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const std::uint64_t key = random >> 40 & 1023;
    const BlockId id = BlockId::make(static_cast<unsigned>(12 + key % 3), key);
    if ((random >> 60) % 2 == 0) {
      memory::HoldCounts::Hold* hold = table.add(id);
      REQUIRE(hold != nullptr);
      hold->generation = static_cast<std::uint32_t>(key);
      model[key] = true;
    } else if (memory::HoldCounts::Hold* hold = table.find(id)) {
      REQUIRE(model[key]);
      REQUIRE(hold->generation == key);
      table.erase(hold);
      model[key] = false;
    } else {
      REQUIRE_FALSE(model[key]);
    }
  }
  std::size_t count = 0;
  table.for_each([&](const memory::HoldCounts::Hold&) { ++count; });
  CHECK(count == static_cast<std::size_t>(std::count(model.begin(), model.end(), true)));
}
