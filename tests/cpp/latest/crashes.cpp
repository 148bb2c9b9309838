// Publishers and readers of a Latest that are killed or stopped anywhere: no version is torn, goes back or gets lost,
// and no other process is blocked.
#include <atomic>
#include <thread>

#include "support/latest_survivors.h"

using namespace shmtree;
using namespace shmtree::test;

#if defined(SHMTREE_CRASH_POINTS)

// guarantee: latest-whole-versions
TEST_CASE("A publisher killed at any store publishes fully or nothing") {
  for (const std::uint64_t history : {0u, 2u}) {
    std::int64_t stores = 1;
    for (bool killed = true; killed; ++stores) {
      const auto arena = new_arena();
      const auto store = new_latest(history, arena);
      for (std::uint64_t version = 1; version <= 6; ++version) publish(*store, version).value();
      const std::uint64_t bytes = used_bytes(*arena);
      killed = killed_at_change(stores, [&] { publish(*store, 7).value(); });
      INFO("killed at change " << stores << ", history " << history);
      require_whole(*store, 6, 7, bytes);
    }
    CHECK(stores > 30);
  }
}

TEST_CASE("A reader killed at any store leaks no block") {
  std::int64_t stores = 1;
  for (bool killed = true; killed; ++stores) {
    const auto arena = new_arena();
    const auto store = new_latest(0, arena);
    publish(*store, 1).value();
    const std::uint64_t bytes = used_bytes(*arena);
    killed = killed_at_change(stores, [&] { store->newest(0).value(); });
    INFO("killed at change " << stores);
    require_whole(*store, 1, 1, bytes);
  }
  CHECK(stores > 3);
}

// guarantee: latest-whole-versions
TEST_CASE("Repeated publisher kills never show torn or older versions") {
  const int rounds = kThreadSanitizer || under_valgrind() ? 50 : 1000;
  const auto arena = new_arena(4 * kMiB);
  const auto store = new_latest(1, arena);
  publish(*store, 1).value();
  const std::uint64_t bytes = used_bytes(*arena);
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::jthread reader([&] {
    for (std::uint64_t last = 0; !done;) {
      const Held held = store->newest(0).value();
      if (held.version < last || value_of(held) != held.version) ++wrong;
      last = held.version;
    }
  });
  int killed = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::int64_t change = 1 + round % 45;
    killed += killed_at_change(change, [&] { publish(*store, store->version() + 1).value(); });
    arena->participants().check(0);
  }
  done = true;
  reader.join();
  CHECK(killed > rounds / 2);
  CHECK(wrong == 0);
  const std::uint64_t newest = store->version();
  require_whole(*store, newest, newest, bytes + 4096);
}

// guarantee: latest-stopped-reader
TEST_CASE("A publisher stopped at any store blocks no reader") {
  std::int64_t stores = 1;
  for (bool stopped = true; stopped; ++stores) {
    const auto store = new_latest();
    publish(*store, 1).value();
    const Gate done;
    Child child([&] {
      crash_signal = SIGSTOP;
      changes_until_crash.store(stores);
      const bool published = publish(*store, 2).ok();
      changes_until_crash.store(0);
      done.open();
      return published;
    });
    child.wait_until_stopped();
    INFO("stopped at change " << stores);
    const Held held = store->newest(0).value();
    REQUIRE((held.version == 1 || held.version == 2));
    REQUIRE(value_of(held) == held.version);
    REQUIRE(store->wait_for_newer(0, no_wait()).ok());
    stopped = !done.is_open();
    child.signal(SIGCONT);
    REQUIRE(child.succeeded());
    REQUIRE(value_of(store->newest(1).value()) == 2);
    REQUIRE(value_of(held) == held.version);
    REQUIRE(check_ring(*store->ring()) == "");
  }
  CHECK(stores > 30);
}

// guarantee: latest-stopped-reader
TEST_CASE("A stopped reader blocks no publisher and pins one version") {
  std::int64_t stores = 1;
  for (bool stopped = true; stopped; ++stores) {
    const auto arena = new_arena();
    const auto store = new_latest(0, arena);
    publish(*store, 1).value();
    const std::uint64_t bytes = used_bytes(*arena);
    const Gate done;
    Child child([&] {
      crash_signal = SIGSTOP;
      changes_until_crash.store(stores);
      bool whole = false;
      {
        const Held held = store->newest(0).value();
        whole = value_of(held) == held.version;
      }
      changes_until_crash.store(0);
      done.open();
      return whole;
    });
    child.wait_until_stopped();
    INFO("stopped at change " << stores);
    for (std::uint64_t version = 2; version <= 20; ++version) REQUIRE(publish(*store, version).value() == version);
    REQUIRE(used_bytes(*arena) <= bytes + 4096);
    stopped = !done.is_open();
    child.signal(SIGCONT);
    REQUIRE(child.succeeded());
    arena->reconcile(patience()).value();
    REQUIRE(used_bytes(*arena) == bytes);
    REQUIRE(check_arena(*arena) == "");
  }
  CHECK(stores > 3);
}

#endif

// guarantee: latest-whole-versions
TEST_CASE("Concurrent readers see no torn or older version") {
  const int rounds = kThreadSanitizer || under_valgrind() ? 300 : 20'000;
  const auto arena = new_arena();
  const auto store = new_latest(1, arena);
  publish(*store, 1).value();
  const std::uint64_t bytes = used_bytes(*arena);
  // The value is not the version: there are two publishers, and only publish() returns the version.
  const auto publish_many = [&](std::uint64_t publisher) {
    for (int i = 0; i < rounds; ++i) {
      if (!publish(*store, publisher)) return false;
    }
    return true;
  };
  std::atomic<bool> done{false};
  const auto read_until = [&](const std::atomic<bool>& stop) {
    bool right = true;
    for (std::uint64_t last = 0; !stop;) {
      const auto held = store->newest(0);
      if (!held || held->version < last || !value_of(*held)) right = false;
      if (held) last = held->version;
      const auto before = store->at(last - 1);
      if (before && !value_of(*before)) right = false;
    }
    return right;
  };
  std::atomic<int> wrong{0};
  {
    Child publisher([&] { return publish_many(1); });
    Child reader([&] {
      std::jthread stopper([&] { done = publish_many(2); });
      return read_until(done);
    });
    std::vector<std::jthread> readers;
    for (int i = 0; i < 2; ++i) readers.emplace_back([&] { wrong += !read_until(done); });
    // Allocates and frees blocks of the same size for other uses all the time.
    readers.emplace_back([&] {
      while (!done) {
        const Lease lease = filled_lease(*arena, 64, 3);
        for (int i = 0; i < 20; ++i) wrong += !is_filled(lease, 3);
      }
    });
    wrong += !publish_many(3);
    wrong += !publisher.succeeded();
    done = true;
    wrong += !reader.succeeded();
  }
  CHECK(wrong == 0);
  CHECK(check_ring(*store->ring()) == "");
  arena->reconcile(patience()).value();
  CHECK(check_arena(*arena) == "");
  CHECK(used_bytes(*arena) == bytes + 4096);
}
