// Crash states built by hand, and state that recovery must not touch.
#include <thread>
#include <vector>

#include "support/crash_states.h"

using namespace shmtree;
using namespace shmtree::test;
using memory::Identity;

namespace {

// Returns a block in the state in which a killed writer leaves it.
BlockRef left_in_writing(Arena& arena, Identity writer, std::uint64_t bytes = 4096) {
  OwnedBlock block = new_block(arena, bytes);
  arena.blocks().entry(block.ref().id)->word = memory::block_word(BlockState::kWriting, writer, block.ref().generation);
  return block.ref();
}

}  // namespace

TEST_CASE("Recovery of an arena in order changes nothing") {
  auto arena = new_arena();
  const Lease lease = new_lease(*arena, 5000);
  const OwnedBlock block = new_block(*arena, 9000);
  new_block(*arena, 70'000).abandon();
  const memory::ArenaStats before = arena->inspector().stats();
  for (int i = 0; i < 3; ++i) {
    recover(*arena);
    const memory::ArenaStats after = arena->inspector().stats();
    CHECK(after.committed_bytes == before.committed_bytes);
    CHECK(after.used_bytes == before.used_bytes);
    CHECK(after.held_bytes == before.held_bytes);
    CHECK(after.blocks == before.blocks);
  }
}

TEST_CASE("A block that a dead process was writing is freed") {
  auto arena = new_arena();
  const BlockRef ref = left_in_writing(*arena, dead_identity(*arena));
  recover(*arena);
  CHECK_FALSE(arena->blocks().is_current(ref));
  CHECK(used_bytes(*arena) == 0);
}

TEST_CASE("A block that a living process is writing is left alone") {
  auto arena = new_arena();
  Gate taken;
  Child child([&] {
    const OwnedBlock block = new_block(*arena, 5000);
    taken.open(memory::pack(block.ref()));
    pause();
    return true;
  });
  const BlockRef ref = memory::unpack(taken.wait());
  recover(*arena);
  CHECK(arena->blocks().is_current(ref));
}

TEST_CASE("A block with an impossible writer is freed") {
  auto arena = new_arena();
  const BlockRef ref = left_in_writing(*arena, memory::make_identity(0, 0xffff0));
  recover(*arena);
  CHECK_FALSE(arena->blocks().is_current(ref));
}

TEST_CASE("Recovery returns the pages of a partly committed block") {
  auto arena = new_arena();
  const std::uint64_t before = file_pages_bytes(*arena);
  const BlockRef ref = left_in_writing(*arena, dead_identity(*arena), kMiB);
  // Simulates that only a part was allocated when the writer was killed.
  REQUIRE(release_pages(arena->fd(), arena->blocks().geometry().data_offset(ref.id) + kMiB / 2, kMiB / 2));
  recover(*arena);
  CHECK(arena->inspector().stats().committed_bytes == 0);
  CHECK(file_pages_bytes(*arena) < before + kMiB / 2);
  CHECK(new_block(*arena, kMiB).cold());
}

TEST_CASE("Recovery delivers a queued message of a dead sender") {
  auto arena = new_arena();
  const Lease channel = Window::create(*arena);
  Window& window = Window::of(*arena, channel.ref());
  const BlockRef ref = left_in_writing(*arena, dead_identity(*arena));
  window.slots[0] = memory::pack(ref);
  window.tail = 1;
  recover(*arena);
  CHECK(memory::state_of(arena->blocks().entry(ref.id)->word) == BlockState::kLive);
  CHECK(window.get(*arena) == ref);
}

TEST_CASE("Recovery frees a block stored beyond the end of the window") {
  auto arena = new_arena();
  const Lease channel = Window::create(*arena);
  const BlockRef ref = left_in_writing(*arena, dead_identity(*arena));
  Window::of(*arena, channel.ref()).slots[0] = memory::pack(ref);
  recover(*arena);
  CHECK_FALSE(arena->blocks().is_current(ref));
}

TEST_CASE("An unreferenced live block is freed") {
  auto arena = new_arena();
  const BlockRef ref = left_live(*arena);
  recover(*arena);
  CHECK_FALSE(arena->blocks().is_current(ref));
}

TEST_CASE("A live block that only a dead process held is freed") {
  auto arena = new_arena();
  const BlockRef ref = left_live(*arena);
  const Identity dead = dead_identity(*arena);
  arena->blocks().entry(ref.id)->holders.words[memory::slot_of(dead) / 64] = holder_bit(dead);
  recover(*arena);
  CHECK_FALSE(arena->blocks().is_current(ref));
}

TEST_CASE("References of an unfinished message keep no block") {
  auto arena = new_arena();
  Lease array = new_lease(*arena);
  OwnedBlock message = new_block(*arena);
  const BlockRef list[] = {array.ref()};
  REQUIRE(arena->holders().refer(message, list, patience()).ok());
  arena->blocks().entry(message.ref().id)->word =
      memory::block_word(BlockState::kWriting, dead_identity(*arena), message.ref().generation);
  array.reset();
  recover(*arena);
  CHECK(used_bytes(*arena) == 0);
}

TEST_CASE("References of a queued message survive a wrong refcount") {
  auto arena = new_arena();
  const Lease channel = Window::create(*arena);
  Lease array = new_lease(*arena);
  OwnedBlock message = new_block(*arena);
  const BlockRef list[] = {array.ref()};
  REQUIRE(arena->holders().refer(message, list, patience()).ok());
  REQUIRE(Window::of(*arena, channel.ref()).put(*arena, std::move(message)));
  const BlockRef ref = array.ref();
  arena->blocks().entry(ref.id)->refcount = 99;
  recover(*arena);
  array.reset();
  CHECK(arena->blocks().is_current(ref));
  arena->holders().drop(Window::of(*arena, channel.ref()).get(*arena));
  CHECK_FALSE(arena->blocks().is_current(ref));
}

TEST_CASE("Free lists and counts of any value are rebuilt") {
  auto arena = new_arena();
  const Lease lease = new_lease(*arena, 5000);
  { const OwnedBlock a = new_block(*arena), b = new_block(*arena, 20'000), c = new_block(*arena); }
  memory::ArenaHeader& header = arena->header();
  header.committed_bytes = 1;
  header.used_bytes = ~std::uint64_t{0};
  header.held_bytes = 12345;
  for (memory::ClassState& state : header.classes) {
    state.warm = 7;
    state.cold = ~std::uint64_t{0};
  }
  recover(*arena);
  CHECK(used_bytes(*arena) == 8192);
  CHECK(arena->pool().held_bytes() == 8192);
}

TEST_CASE("Watermarks that are too high or too low are corrected") {
  auto arena = new_arena();
  const Lease lease = new_lease(*arena, 5000);
  std::memset(lease.data(), 5, 5000);
  memory::ClassState& state = arena->header().classes[1];
  for (const std::uint64_t mark : {std::uint64_t{0}, std::uint64_t{1} << 29, ~std::uint64_t{0}}) {
    const std::uint64_t high = state.high;
    state.high = mark;
    state.table_committed = mark;
    recover(*arena);
    CHECK(state.high == high);
    const OwnedBlock other = new_block(*arena, 5000);
    std::memset(other.data(), 6, 5000);
    CHECK(lease.data()[0] == std::byte{5});
  }
}

TEST_CASE("A circular free list hands out each block once") {
  auto arena = new_arena();
  BlockRef one, two;
  {
    const OwnedBlock a = new_block(*arena), b = new_block(*arena);
    one = a.ref();
    two = b.ref();
  }
  arena->blocks().entry(one.id)->next_free = two.id.index() + 1;
  arena->blocks().entry(two.id)->next_free = one.id.index() + 1;
  std::vector<OwnedBlock> blocks;
  for (int i = 0; i < 5; ++i) {
    blocks.push_back(new_block(*arena));
    for (std::size_t j = 0; j + 1 < blocks.size(); ++j) CHECK_FALSE(blocks[j].ref().id == blocks.back().ref().id);
  }
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("A message survives if its sender dies during recovery") {
  auto arena = new_arena();
  const Lease channel = Window::create(*arena);
  Window& window = Window::of(*arena, channel.ref());
  static Gate* go;
  static Child* sender;
  Gate writing, published;
  go = &published;
  Child child([&] {
    OwnedBlock block = new_block(*arena);
    writing.open(memory::pack(block.ref()));
    published.wait();
    window.slots[0] = memory::pack(block.ref());
    window.tail = 1;
    raise(SIGKILL);
    return false;
  });
  sender = &child;
  const BlockRef ref = memory::unpack(writing.wait());
  // The process is alive when recovery checks for dead processes, and its window is empty when recovery walks its
  // channel.
  memory::ReconcilePass::set_channel_walker([](Arena&, BlockRef, memory::ReconcilePass&) {
    go->open();
    static_cast<void>(sender->was_killed());
  });
  memory::request_recovery(arena->header());
  REQUIRE(arena->reconcile(patience()).ok());
  Window::walk_windows();
  CHECK(arena->blocks().is_current(ref));
  recover(*arena);
  CHECK(window.get(*arena) == ref);
}

TEST_CASE("Recovery without a walker fails and frees nothing") {
  auto arena = new_arena();
  const Lease channel = Window::create(*arena);
  const BlockRef ref = left_live(*arena);
  memory::ReconcilePass::set_channel_walker(nullptr);
  memory::request_recovery(arena->header());
  CHECK(arena->reconcile(patience()).code() == Code::kInvalid);
  CHECK(arena->blocks().is_current(ref));
  Window::walk_windows();
  recover(*arena);
}

TEST_CASE("Recovery during concurrent releases keeps the counts right") {
  auto arena = new_arena(64 * kMiB);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        OwnedBlock block = new_block(*arena);  // a message: it counts as pinned from its first pin on
        const Lease lease = arena->hold_new(std::move(block)).value();
        const Lease again = arena->hold_existing(lease.ref(), BlockKind::kMessage, patience()).value();
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    memory::request_recovery(arena->header());
    REQUIRE(arena->reconcile(patience()).ok());
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  REQUIRE(arena->allocate(1, BlockKind::kMessage, patience()).ok());
  CHECK(arena->pool().held_bytes() == 0);
  CHECK(used_bytes(*arena) == 0);
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("A block with an entry on two pages outlives a reconcile") {
  auto arena = new_arena();
  std::vector<OwnedBlock> blocks;
  constexpr std::size_t kAcross = 4096 / sizeof(BlockEntry);  // begins in the table's first page and ends in its second
  static_assert(4096 % sizeof(BlockEntry) != 0);
  while (blocks.size() <= kAcross) blocks.push_back(new_block(*arena));
  const BlockRef across = blocks.back().ref();
  REQUIRE(across.id.index() == kAcross);
  memory::request_recovery(arena->header());
  arena->reconcile({}).value();
  CHECK(arena->blocks().is_current(across));
  CHECK(new_block(*arena).ref().id.index() == kAcross + 1);
}
