// Words of the shared control structures that a hostile or broken process overwrote: never a crash or an endless loop.
#include "support/arenas.h"
#include "support/catch2.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

// Makes calls of all kinds in an arena. Errors are allowed. The alarm of the child kills it if it hangs.
void use(Arena& arena, const Lease& channel) {
  Window& window = Window::of(arena, channel.ref());
  for (int round = 0; round < 2; ++round) {
    for (const std::uint64_t bytes : {100u, 5000u, 3'000'000u}) {
      auto block = arena.allocate(bytes, BlockKind::kMessage, no_wait());
      if (!block) continue;
      block->data()[0] = std::byte{1};
      auto lease = arena.hold_new(std::move(*block));
      if (!lease) continue;
      auto message = arena.allocate(200, BlockKind::kMessage, no_wait());
      const BlockRef list[] = {lease->ref()};
      if (message && arena.holders().refer(*message, list, patience(50)).ok()) window.put(arena, std::move(*message));
      auto again = arena.hold_existing(lease->ref(), BlockKind::kArray, patience(50));
    }
    const BlockRef ref = window.get(arena);
    if (arena.blocks().is_current(ref)) arena.holders().drop(ref);
    static_cast<void>(arena.inspector().stats());
    static_cast<void>(arena.inspector().holders());
    static_cast<void>(check_arena(arena));
    arena.allocator().trim();
    arena.participants().check(0);
    memory::request_recovery(arena.header());
    static_cast<void>(arena.reconcile(patience(200)).ok());
  }
}

// Overwrites each 64-bit word of a region of a new arena with several values, and uses the arena.
template <class Where>
void damage_each_word(std::size_t words, Where where) {
  const std::uint64_t values[] = {0,
                                  1,
                                  ~std::uint64_t{0},
                                  0x8000000000000001,
                                  0xdeadbeefcafe0005,
                                  memory::block_word(BlockState::kLive, memory::kNoIdentity, 1)};
  const std::size_t step = kThreadSanitizer || kAddressSanitizer || under_valgrind() ? 5 : 1;
  std::size_t tried = 0;
  for (std::size_t word = 0; word < words; ++word) {
    for (const std::uint64_t value : values) {
      if (tried++ % step != 0) continue;
      auto arena = new_arena();
      const Lease channel = Window::create(*arena);
      const Lease held = new_lease(*arena, 5000);
      new_block(*arena, 5000).abandon();
      std::byte* at = where(*arena) + word * 8;
      const std::int64_t began = monotonic_ns();
      Child child([&] {
        std::memcpy(at, &value, 8);
        use(*arena, channel);
        return true;
      });
      const bool survived = child.succeeded();
      INFO("word " << word << " set to " << value);
      REQUIRE(survived);
      REQUIRE(monotonic_ns() - began < 60'000'000'000);
    }
  }
  CHECK(tried > 0);
}

}  // namespace

// guarantee: damaged-words
TEST_CASE("A damaged header word causes no hang or crash") {
  // The size classes that are in use, and the adjacent ones, represent all classes.
  damage_each_word(offsetof(memory::ArenaHeader, classes) / 8 + 4 * 4,
                   [](Arena& arena) { return reinterpret_cast<std::byte*>(&arena.header()); });
}

TEST_CASE("A damaged participant word causes no hang or crash") {
  damage_each_word(48, [](Arena& arena) { return reinterpret_cast<std::byte*>(&arena.participants().slot(0)); });
}

TEST_CASE("A damaged entry of a held block causes no hang or crash") {
  damage_each_word(
      24, [](Arena& arena) { return reinterpret_cast<std::byte*>(arena.blocks().entry(BlockId::make(13, 0))); });
}

TEST_CASE("A damaged entry of a free block causes no hang or crash") {
  damage_each_word(
      24, [](Arena& arena) { return reinterpret_cast<std::byte*>(arena.blocks().entry(BlockId::make(13, 1))); });
}

TEST_CASE("A damaged entry of a channel block causes no hang or crash") {
  damage_each_word(
      24, [](Arena& arena) { return reinterpret_cast<std::byte*>(arena.blocks().entry(BlockId::make(12, 0))); });
}

TEST_CASE("Pages are reclaimed only from blocks of the class of a list") {
  auto arena = new_arena();
  new_block(*arena, 5000).abandon();
  std::atomic<std::uint64_t>& warm = arena->header().classes[13 - memory::kMinClass].warm;
  REQUIRE(warm.load() == 1);
  Child child([&] {
    warm = (std::uint64_t{0xff79ffff} << 32) + 1;  // its lower half names a free block
    arena->allocator().trim();
    return arena->reconcile(patience()).ok() && check_arena(*arena).empty();
  });
  CHECK(child.succeeded());
}

TEST_CASE("A reference list outside its block refers to nothing") {
  auto arena = new_arena();
  Lease lease = new_lease(*arena, 5000);
  BlockEntry& entry = *arena->blocks().entry(lease.ref().id);
  for (const auto& [offset, length] : {std::pair{std::uint64_t{0}, 0xffffffffu}, std::pair{std::uint64_t{8184}, 1u},
                                       std::pair{~std::uint64_t{7}, 1u}, std::pair{std::uint64_t{3}, 1u}}) {
    entry.list_offset = offset;
    entry.list_length = length;
    CHECK(arena->blocks().referred_to_by(lease.ref()).empty());
  }
  lease.reset();
  CHECK(used_bytes(*arena) == 0);
}

TEST_CASE("Recovery ends although blocks refer to each other") {
  auto arena = new_arena();
  Lease one = new_lease(*arena, 4096), two = new_lease(*arena, 4096);
  for (const auto& [from, to] : {std::pair{&one, &two}, std::pair{&two, &one}}) {
    auto* list = reinterpret_cast<memory::ListEntry*>(from->data());
    list[0] = {to->ref().id.value, to->ref().generation};
    arena->blocks().entry(from->ref().id)->list_offset = 0;
    arena->blocks().entry(from->ref().id)->list_length = 1;
    arena->blocks().entry(to->ref().id)->refcount = 1;
  }
  one.reset();
  two.reset();
  memory::request_recovery(arena->header());
  CHECK(arena->reconcile(patience()).ok());
}

TEST_CASE("A walk over references stops at the maximum of a message") {
  auto arena = new_arena(64 << 20);
  const std::uint64_t entries = memory::kMaxReferences + 100;
  auto block = arena->allocate(entries * sizeof(memory::ListEntry), BlockKind::kMessage, patience()).value();
  auto* list = reinterpret_cast<memory::ListEntry*>(block.data());
  for (std::uint64_t i = 0; i < entries; ++i) list[i] = {block.ref().id.value, block.ref().generation};
  memory::BlockEntry& entry = *arena->blocks().entry(block.ref().id);
  entry.list_offset = 0;
  entry.list_length = static_cast<std::uint32_t>(entries);
  CHECK(arena->blocks().referred_to_by(block.ref()).size() == memory::kMaxReferences);
  CHECK(arena->blocks().referred_bytes(block.ref()) == memory::kMaxReferences * block.bytes());
  std::uint64_t left = 10;
  CHECK(arena->blocks().referred_bytes(block.ref(), &left) == 10 * block.bytes());
  CHECK(left == 0);
  entry.list_length = 0;
}
