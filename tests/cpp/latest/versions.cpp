// Versions of a Latest: every reader gets the newest one, older ones are kept as far as the history goes, and held
// versions stay.
#include "support/versions.h"

#include <thread>

#include "support/caller.h"
#include "support/catch2.h"
#include "support/latests.h"

using namespace shmtree;
using namespace shmtree::test;

TEST_CASE("The history contains exactly the configured versions") {
  for (const std::uint64_t history : {0u, 1u, 5u}) {
    const auto store = new_latest(history);
    for (std::uint64_t i = 1; i <= 20; ++i) {
      publish(*store, i).value();
      for (std::uint64_t version = 0; version <= 21; ++version) {
        const bool there = version != 0 && version <= i && version + history >= i;
        CHECK(value_at(*store, version) == (there ? std::optional(version) : std::nullopt));
      }
    }
    CHECK(store->retained().versions == history + 1);
    CHECK(check_ring(*store->ring()).empty());
  }
}

// guarantee: latest-pins
TEST_CASE("A held version stays unchanged and is freed on release") {
  const auto arena = new_arena();
  const auto store = new_latest(0, arena);
  publish(*store, 1, 1000).value();
  const std::uint64_t one = used_bytes(*arena);
  Held held = store->newest(0).value();
  for (std::uint64_t i = 2; i <= 50; ++i) publish(*store, i, 1000).value();
  overfill(*arena);
  CHECK(value_of(held) == 1);
  CHECK(used_bytes(*arena) == one + 8192);
  held.block.reset();
  CHECK(used_bytes(*arena) == one);
}

TEST_CASE("Only history and newest are kept until the last detach") {
  const auto arena = new_arena();
  const std::uint64_t before = used_bytes(*arena);
  {
    const auto store = new_latest(3, arena);
    const std::uint64_t empty = used_bytes(*arena);
    for (std::uint64_t i = 1; i <= 30; ++i) publish(*store, i, 1000).value();
    CHECK(used_bytes(*arena) == empty + 4 * 8192);
    arena->reconcile(patience()).value();  // finds the blocks by the list of references
    CHECK(used_bytes(*arena) == empty + 4 * 8192);
    CHECK(value_at(*store, 28) == 28);
    CHECK(check_arena(*arena).empty());
  }
  CHECK(used_bytes(*arena) == before);
}

TEST_CASE("Blocks live as long as the version that refers to them") {
  const auto arena = new_arena();
  const auto store = new_latest(0, arena);
  const std::uint64_t empty = used_bytes(*arena);
  {
    const Lease array = filled_lease(*arena, 4096, 7);
    OwnedBlock block = arena->allocate(64, BlockKind::kPublished, patience()).value();
    const std::vector<BlockRef> referred{array.ref()};
    arena->holders().refer(block, referred, patience()).value();
    store->publish(std::move(block), 48, patience()).value();
  }
  CHECK(used_bytes(*arena) == empty + 8192);
  const Held held = store->newest(0).value();
  const BlockRef referred = arena->blocks().referred_to_by(held.block.ref()).at(0);
  CHECK(is_filled(arena->hold_referred(referred).value(), 7));
  publish(*store, 2).value();
  publish(*store, 3).value();
  CHECK(used_bytes(*arena) == empty + 3 * 4096);
}

TEST_CASE("open names both layout versions of a Latest") {
  const auto arena = new_arena();
  auto store = LatestStore::create(arena, {}, patience()).value();
  const BlockRef block = store->block();
  const Lease kept = arena->hold_existing(block, BlockKind::kLatest, patience()).value();
  store.reset();
  reinterpret_cast<broadcast::RingHeader*>(kept.data())->version = 77;
  const auto opened = LatestStore::open(arena, block, patience());
  CHECK(names_versions(opened.error(), 77, broadcast::kRingVersion));
}

TEST_CASE("A new version wakes a waiting reader") {
  const auto store = new_latest();
  publish(*store, 1).value();
  CHECK(store->wait_for_newer(0, no_wait()).ok());
  CHECK(store->wait_for_newer(1, no_wait()).code() == Code::kEmpty);
  CHECK(store->wait_for_newer(1, patience(20)).code() == Code::kEmpty);
  std::atomic<std::uint64_t> seen{0};
  Caller waiting([&](const std::stop_token&) {
    if (store->wait_for_newer(1, patience()).ok()) seen = store->newest(1).value().version;
  });
  publish(*store, 2).value();
  waiting.join();
  CHECK(seen == 2);
}

TEST_CASE("One new version wakes all waiting readers") {
  const auto store = new_latest();
  publish(*store, 1).value();
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 8; ++i) {
    children.push_back(std::make_unique<Child>(
        [&] { return store->wait_for_newer(1, patience()).ok() && value_of(store->newest(1).value()) == 2; }));
  }
  publish(*store, 2).value();
  for (const auto& child : children) CHECK(child->succeeded());
}

TEST_CASE("Readers wait for versions until the last publisher leaves") {
  const auto store = new_latest();
  CHECK(store->wait_for_newer(0, no_wait()).code() == Code::kEmpty);
  publish(*store, 1).value();
  CHECK(store->publishers() == std::vector<int>{getpid()});
  CHECK(store->wait_for_newer(1, no_wait()).code() == Code::kEmpty);
  store->ring()->leave();
  CHECK(store->publishers().empty());
  CHECK(store->wait_for_newer(1, patience()).code() == Code::kClosed);
  CHECK(store->wait_for_newer(0, patience()).ok());  // the existing version can be read
  publish(*store, 2).value();
  CHECK(store->wait_for_newer(2, no_wait()).code() == Code::kEmpty);
}

// guarantee: latest-dead-publisher
TEST_CASE("Readers are notified of dead publishers until a new version") {
  const auto store = new_latest();
  const Gate published;
  Child child([&] {
    published.open(publish(*store, 1).value());
    pause();
    return true;
  });
  published.wait();
  CHECK(store->wait_for_newer(1, no_wait()).code() == Code::kEmpty);
  std::atomic<bool> told{false};
  Caller waiting([&](const std::stop_token&) {
    const Status waited = store->wait_for_newer(1, patience());
    told = waited.code() == Code::kPeerDied && waited.error().pids == std::vector<int>{child.pid()};
  });
  child.kill_and_wait();
  waiting.join();
  CHECK(told);
  CHECK(store->wait_for_newer(1, patience()).code() == Code::kPeerDied);
  CHECK(value_of(store->newest(0).value()) == 1);
  publish(*store, 2).value();
  store->ring()->leave();
  CHECK(store->wait_for_newer(2, patience()).code() == Code::kClosed);
}

TEST_CASE("Corrupt words cause errors and a new version repairs them") {
  const auto arena = new_arena();
  const auto store = new_latest(1, arena);
  const Lease array = new_lease(*arena);
  publish(*store, 1).value();
  broadcast::Entry& entry = entry_of(*store, 1);
  const std::uint64_t block = load_relaxed(entry.block);
  for (const std::uint64_t word : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{1}, memory::pack(array.ref()),
                                   memory::pack(store->block())}) {
    store_relaxed(entry.block, word);
    CHECK(store->newest(0).code() == Code::kCorrupt);
    CHECK_FALSE(store->at(1).ok());
  }
  store_relaxed(entry.block, block);
  store_relaxed(entry.bytes, std::uint64_t{1} << 40);
  CHECK(store->newest(0).code() == Code::kCorrupt);
  store_relaxed(entry.bytes, std::uint64_t{64});
  store_relaxed(header_of(*store).tail, std::uint64_t{7});
  CHECK(store->newest(0).code() == Code::kCorrupt);
  store_relaxed(header_of(*store).putting, std::uint64_t{1});
  CHECK(publish(*store, 2).value() == 8);
  CHECK(value_of(store->newest(0).value()) == 2);
}

TEST_CASE("open refuses a freed block and an array") {
  const auto arena = new_arena();
  const BlockRef gone = new_lease(*arena).ref();
  CHECK(LatestStore::open(arena, gone, patience()).code() == Code::kNotFound);
  const Lease array = new_lease(*arena, 100'000);
  CHECK(LatestStore::open(arena, array.ref(), patience()).code() == Code::kIncompatible);
}
