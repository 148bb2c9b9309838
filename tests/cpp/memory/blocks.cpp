// Blocks: reuse, growth, the budget, eviction and trimming, and the error when there is no space.
#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <vector>

#include "platform/file.h"
#include "support/arenas.h"
#include "support/catch2.h"
#include "support/failing_calls.h"
#include "support/waits.h"

using namespace shmtree;
using namespace shmtree::test;

TEST_CASE("A block freed last is used first") {
  auto arena = new_arena();
  OwnedBlock a = new_block(*arena), b = new_block(*arena), c = new_block(*arena);
  const BlockId first = a.ref().id, second = c.ref().id;
  a.abandon();
  c.abandon();
  CHECK(new_block(*arena).ref().id == second);
  const OwnedBlock again = new_block(*arena), next = new_block(*arena);
  CHECK(again.ref().id == second);
  CHECK(next.ref().id == first);
}

TEST_CASE("A freed block rests until 2 MiB of its class have been freed") {
  auto arena = new_arena(64 * kMiB);
  std::vector<BlockId> ids;
  for (int i = 0; i < 16; ++i) ids.push_back(new_lease(*arena, 100'000).ref().id);  // 16 blocks of 128 KiB
  for (std::size_t i = 0; i < ids.size(); ++i) CHECK(std::count(ids.begin(), ids.end(), ids[i]) == 1);
  for (int round = 0; round < 2; ++round) {
    for (const BlockId id : ids) CHECK(new_lease(*arena, 100'000).ref().id == id);
  }
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("A size class is bounded by peak use plus resting blocks") {
  auto arena = new_arena(64 * kMiB);
  for (int round = 0; round < 5; ++round) {
    std::vector<Lease> leases;
    for (int i = 0; i < 50; ++i) leases.push_back(new_lease(*arena, 100'000));
    leases.clear();
    CHECK(check_arena(*arena) == "");
  }
  CHECK(arena->inspector().stats().committed_bytes <= (50 + 16) * memory::round_up(100'000, platform::page_size()));
}

TEST_CASE("Resting blocks take no more than a quarter of the budget") {
  auto arena = new_arena(4 * kMiB);
  for (const std::uint64_t bytes : {100'000u, 20'000u}) {
    for (int i = 0; i < 200; ++i) new_lease(*arena, bytes);
  }
  CHECK(arena->inspector().stats().committed_bytes <= kMiB + 100'000);
  overfill(*arena);
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("Resting blocks are reused when the machine has no memory") {
  if (kAddressSanitizer || kThreadSanitizer || under_valgrind()) return;  // their own calls would fail too
  auto arena = new_arena(64 * kMiB);
  Child child([&] {
    { const Lease a = new_lease(*arena, 100'000), b = new_lease(*arena, 100'000); }
    if (!fail_call(SYS_fallocate, ENOSPC)) return true;  // this machine has no seccomp filters
    for (int i = 0; i < 20; ++i) {
      if (!arena->allocate(100'000, BlockKind::kMessage, no_wait())) return false;
    }
    return check_arena(*arena).empty();
  });
  CHECK(child.succeeded());
}

TEST_CASE("Resting blocks are reclaimed for another class") {
  auto arena = new_arena(16 * kMiB);
  for (int i = 0; i < 200; ++i) new_lease(*arena, 100'000);
  const OwnedBlock all = new_block(*arena, 16 * kMiB);
  CHECK(arena->inspector().stats().committed_bytes == 16 * kMiB);
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("Reusing a block makes old references to it stale") {
  auto arena = new_arena();
  OwnedBlock block = new_block(*arena);
  const BlockRef old = block.ref();
  CHECK(arena->blocks().is_current(old));
  block.abandon();
  CHECK_FALSE(arena->blocks().is_current(old));
  const OwnedBlock again = new_block(*arena);
  REQUIRE(again.ref().id == old.id);
  CHECK(arena->blocks().is_current(again.ref()));
  CHECK_FALSE(arena->blocks().is_current(old));
}

TEST_CASE("Generations wrap without losing the block") {
  auto arena = new_arena();
  const BlockRef ref = new_block(*arena).ref();
  BlockEntry& entry = *arena->blocks().entry(ref.id);
  entry.word = memory::block_word(BlockState::kFree, memory::kNoIdentity, memory::kBlockGenerationMask);
  const OwnedBlock block = new_block(*arena);
  CHECK(block.ref() == BlockRef{ref.id, 0});
  CHECK(memory::unpack(memory::pack(block.ref())) == block.ref());
}

TEST_CASE("Blocks of one class do not overlap and are 4 KiB aligned") {
  auto arena = new_arena();
  std::vector<OwnedBlock> blocks;
  for (int i = 0; i < 64; ++i) {
    blocks.push_back(new_block(*arena, 12'000));
    std::memset(blocks.back().data(), i, 12'000);
    CHECK(reinterpret_cast<std::uintptr_t>(blocks.back().data()) % 4096 == 0);
  }
  for (int i = 0; i < 64; ++i) {
    const OwnedBlock& block = blocks[static_cast<std::size_t>(i)];
    CHECK(block.data()[0] == static_cast<std::byte>(i));
    CHECK(block.data()[11'999] == static_cast<std::byte>(i));
  }
}

TEST_CASE("A block commits pages for the requested bytes only") {
  auto arena = new_arena();
  const std::uint64_t before = file_pages_bytes(*arena);
  const OwnedBlock block = new_block(*arena, kMiB + 1);  // in the size class of 2 MiB
  const std::uint64_t wanted = kMiB + platform::page_size();
  CHECK(arena->inspector().stats().committed_bytes == wanted);
  // including the page of the block table with its entry
  CHECK(file_pages_bytes(*arena) - before <= wanted + 512 * 1024);
}

TEST_CASE("A block of zero bytes is valid") {
  auto arena = new_arena();
  const OwnedBlock block = new_block(*arena, 0);
  CHECK(block.valid());
  CHECK(block.data() != nullptr);
}

TEST_CASE("A reused block does not commit its pages again") {
  auto arena = new_arena();
  new_block(*arena, 300'000).abandon();
  const OwnedBlock smaller = new_block(*arena, 270'000);
  CHECK_FALSE(smaller.cold());
  CHECK(arena->inspector().stats().committed_bytes == memory::round_up(300'000, platform::page_size()));
  new_block(*arena, 4000).abandon();
}

TEST_CASE("Thousands of blocks of a class extend its table") {
  auto arena = new_arena(64 * kMiB);
  std::vector<OwnedBlock> blocks;
  for (int i = 0; i < 5000; ++i) blocks.push_back(new_block(*arena, 100));
  CHECK(arena->inspector().stats().blocks == 5000);
  blocks.clear();
  CHECK(arena->inspector().stats().blocks == 0);
  CHECK(check_arena(*arena) == "");
}

// guarantee: any-size
TEST_CASE("Every size from a byte to the whole budget fits") {
  auto arena = new_arena(8 * kMiB);
  for (std::uint64_t bytes = 1; bytes <= 8 * kMiB; bytes = bytes * 3 / 2 + 1) {
    const OwnedBlock block = new_block(*arena, bytes);
    block.data()[bytes - 1] = std::byte{1};
  }
  new_block(*arena, 8 * kMiB);
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("A request over the budget fails at once with both numbers") {
  auto arena = new_arena(8 * kMiB);
  auto block = arena->allocate(9 * kMiB, BlockKind::kMessage, WaitContext{});
  REQUIRE_FALSE(block.ok());
  CHECK(block.code() == Code::kMessageTooLarge);
  CHECK(block.error().message.find(std::to_string(9 * kMiB)) != std::string::npos);
  CHECK(block.error().message.find(std::to_string(8 * kMiB)) != std::string::npos);
}

TEST_CASE("A request for the largest 64-bit size is refused") {
  auto arena = new_arena();
  CHECK(arena->allocate(~std::uint64_t{0}, BlockKind::kMessage, no_wait()).code() == Code::kMessageTooLarge);
}

TEST_CASE("Free pages are reclaimed for a block of another size") {
  auto arena = new_arena(8 * kMiB);
  { const OwnedBlock a = new_block(*arena, 5 * kMiB), b = new_block(*arena, 3 * kMiB); }
  CHECK(arena->inspector().stats().committed_bytes == 8 * kMiB);
  const OwnedBlock block = new_block(*arena, 6 * kMiB);
  CHECK(arena->inspector().stats().committed_bytes <= 8 * kMiB);
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("Pages of the longest unused class are reclaimed first") {
  auto arena = new_arena(8 << 20);
  OwnedBlock idle = new_block(*arena, 1 << 20), busy = new_block(*arena, 2 << 20);
  const BlockRef idle_ref = idle.ref(), busy_ref = busy.ref();
  idle.abandon();
  busy.abandon();
  const OwnedBlock other = new_block(*arena, (5 << 20) + (512 << 10));  // 512 KiB more than there is
  CHECK(arena->blocks().entry(busy_ref.id)->committed == 2 << 20);
  CHECK(arena->blocks().entry(idle_ref.id)->committed < 1 << 20);
}

// guarantee: memory-budget
TEST_CASE("Neither the counts nor the file exceed the budget") {
  auto arena = new_arena(8 * kMiB);
  const std::uint64_t control = 2 * kMiB;  // header, participants and tables
  std::vector<OwnedBlock> blocks;
  std::uint64_t bytes = 1000;
  for (int i = 0; i < 300; ++i) {
    bytes = bytes * 7 % 1'500'000 + 1;
    auto block = arena->allocate(bytes, BlockKind::kArray, no_wait());
    if (!block) {
      REQUIRE(block.code() == Code::kOutOfSharedMemory);
      blocks.erase(blocks.begin());
    } else {
      blocks.push_back(std::move(*block));
    }
    REQUIRE(arena->inspector().stats().committed_bytes <= arena->pool().max_bytes());
    REQUIRE(file_pages_bytes(*arena) <= arena->pool().max_bytes() + control);
  }
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("trim returns the pages of all free blocks to the system") {
  auto arena = new_arena(64 * kMiB);
  const Lease kept = new_lease(*arena, 100'000);
  { const OwnedBlock a = new_block(*arena, 20 * kMiB), b = new_block(*arena, 3 * kMiB); }
  const std::uint64_t before = file_pages_bytes(*arena);
  CHECK(arena->allocator().trim() == 23 * kMiB);
  CHECK(before - file_pages_bytes(*arena) == 23 * kMiB);
  CHECK(arena->inspector().stats().committed_bytes == used_bytes(*arena));
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("A trimmed block is used again with new pages") {
  auto arena = new_arena();
  const BlockId id = new_block(*arena, kMiB).ref().id;
  arena->allocator().trim();
  const OwnedBlock block = new_block(*arena, kMiB);
  CHECK(block.ref().id == id);
  CHECK(block.cold());
  CHECK(file_pages_bytes(*arena) >= kMiB);
}

// guarantee: bounded-free
TEST_CASE("A free returns pages beyond the recent peak to the system") {
  auto arena = new_arena(512 * kMiB);
  std::vector<OwnedBlock> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(new_block(*arena, 10 * kMiB));
  // Simulates that no block of that size was needed for a while.
  arena->header().peak_used[0] = 0;
  arena->header().peak_used[1] = 0;
  arena->header().peak_window = arena->header().peak_window + 0;
  blocks.clear();
  CHECK(arena->inspector().stats().committed_bytes < 200 * kMiB);
  CHECK(arena->inspector().stats().committed_bytes >= 64 * kMiB);
  CHECK(check_arena(*arena) == "");
}

// guarantee: bounded-free
TEST_CASE("One free returns at most 64 MiB of pages") {
  auto arena = new_arena(160 * kMiB);
  std::vector<OwnedBlock> blocks;
  for (int i = 0; i < 160 * 256; ++i) blocks.push_back(new_block(*arena));
  OwnedBlock last = std::move(blocks.back());
  blocks.clear();
  arena->header().peak_used[0] = 0;
  arena->header().peak_used[1] = 0;
  last.abandon();
  CHECK(arena->inspector().stats().committed_bytes == (160 - 64) * kMiB);
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("Out of memory after a second names holders and their bytes") {
  auto arena = new_arena(8 * kMiB);
  const Lease hoard = new_lease(*arena, 6 * kMiB);
  const std::int64_t began = monotonic_ns();
  auto block = arena->allocate(4 * kMiB, BlockKind::kMessage, WaitContext{});
  const std::int64_t took = monotonic_ns() - began;
  REQUIRE_FALSE(block.ok());
  CHECK(block.code() == Code::kOutOfSharedMemory);
  CHECK(block.error().message.find("pid " + std::to_string(getpid())) != std::string::npos);
  CHECK(block.error().message.find(std::to_string(6 * kMiB)) != std::string::npos);
  CHECK(took >= 900'000'000);
}

TEST_CASE("A non-blocking request fails without waiting") {
  auto arena = new_arena(8 * kMiB);
  const Lease hoard = new_lease(*arena, 6 * kMiB);
  CountedWaits waits;
  CHECK(arena->allocate(4 * kMiB, BlockKind::kMessage, waits.until(Deadline::immediate())).code() ==
        Code::kOutOfSharedMemory);
  CHECK(waits.blocks == 0);
}

TEST_CASE("A request times out as full while queued blocks fill memory") {
  auto arena = new_arena(8 * kMiB);
  const OwnedBlock queued = new_block(*arena, 6 * kMiB);
  auto block = arena->allocate(4 * kMiB, BlockKind::kMessage, patience(50));
  REQUIRE_FALSE(block.ok());
  CHECK(block.code() == Code::kFull);
  CHECK(block.error().message.find(std::to_string(8 * kMiB)) != std::string::npos);
}

TEST_CASE("A waiter gets the memory that another process frees") {
  auto arena = new_arena(8 * kMiB);
  Gate taken, go;
  Child child([&] {
    OwnedBlock block = new_block(*arena, 6 * kMiB);
    taken.open();
    go.wait();
    block.abandon();
    return true;
  });
  taken.wait();
  REQUIRE(arena->allocate(4 * kMiB, BlockKind::kMessage, no_wait()).code() == Code::kFull);
  go.open();
  CHECK(arena->allocate(4 * kMiB, BlockKind::kMessage, patience()).ok());
  CHECK(child.succeeded());
}

TEST_CASE("A waiter gets the memory of a process that is killed") {
  auto arena = new_arena(8 * kMiB);
  Gate taken;
  Child child([&] {
    const OwnedBlock block = new_block(*arena, 6 * kMiB);
    const Lease lease = new_lease(*arena, kMiB);
    taken.open();
    pause();
    return true;
  });
  taken.wait();
  child.kill_and_wait();
  CHECK(arena->allocate(8 * kMiB, BlockKind::kMessage, patience()).ok());
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("Waiting for memory sleeps instead of spinning") {
  auto arena = new_arena(8 * kMiB);
  const OwnedBlock queued = new_block(*arena, 6 * kMiB);
  timespec before{}, after{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  CHECK(arena->allocate(4 * kMiB, BlockKind::kMessage, patience(400)).code() == Code::kFull);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  const double cpu =
      static_cast<double>(after.tv_sec - before.tv_sec) + 1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
  CHECK(cpu < 0.1);
}

TEST_CASE("An interrupt ends a wait for memory") {
  struct Interrupt final : WaitHooks {
    void before_block() noexcept override { ++blocks; }
    void after_block() noexcept override {}
    bool interrupted() noexcept override { return true; }
    int blocks = 0;
  } hooks;
  auto arena = new_arena(8 * kMiB);
  const OwnedBlock queued = new_block(*arena, 6 * kMiB);
  CHECK(arena->allocate(4 * kMiB, BlockKind::kMessage, WaitContext{Deadline::never(), &hooks}).code() ==
        Code::kInterrupted);
  CHECK(hooks.blocks > 0);
}

TEST_CASE("Abandoning a new channel block frees it") {
  auto arena = new_arena();
  new_block(*arena, 4096, BlockKind::kChannel).abandon();
  CHECK(used_bytes(*arena) == 0);
}

TEST_CASE("refer refuses a reference list that does not fit the block") {
  auto arena = new_arena();
  OwnedBlock block = new_block(*arena, 16);
  const BlockRef list[2] = {block.ref(), block.ref()};
  CHECK(arena->holders().refer(block, list, patience()).code() == Code::kInvalid);
}
