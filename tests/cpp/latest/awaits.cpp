// Coroutines that await the next version, or message, of a ring: the next publisher sends one text to their hub.
#include "support/broadcasts.h"
#include "support/catch2.h"
#include "support/crash_states.h"
#include "support/hubs.h"
#include "support/latests.h"
#include "support/process.h"

using namespace shmtree;
using namespace shmtree::test;

TEST_CASE("Each request to await a version gets one wake text") {
  const auto store = new_latest();
  const WakePipe hub = new_hub();
  publish(*store, 1).value();
  CHECK(told(hub).empty());
  for (std::uint64_t version = 1; version < 7; version += 2) {
    CHECK_FALSE(store->await_newer(version, hub.address()).value());
    publish(*store, version + 1).value();
    CHECK(told(hub) == std::vector{store->ring()->name()});
    publish(*store, version + 2).value();
    CHECK(told(hub).empty());
  }
  CHECK(store->await_newer(1, hub.address()).value());
}

TEST_CASE("The end of the last publisher wakes readers that await") {
  const auto store = new_latest();
  const WakePipe hub = new_hub();
  publish(*store, 1).value();
  CHECK_FALSE(store->await_newer(1, hub.address()).value());
  store->ring()->leave();
  CHECK(told(hub).size() == 1);
  CHECK(store->await_newer(1, hub.address()).value());
}

TEST_CASE("A put by another process notifies an awaiting hub") {
  const auto ring = new_ring();
  const WakePipe hub = new_hub();
  REQUIRE(ring->await(hub.address()).ok());
  Child child([&] { return put(*ring, 1).ok(); });
  REQUIRE(child.succeeded());
  CHECK(told(hub) == std::vector{ring->name()});
  CHECK(ring->name() != new_ring()->name());
}

#if defined(SHMTREE_CRASH_POINTS)

// guarantee: coroutines-sleep
TEST_CASE("A process killed while it awaits a version leaves no request") {
  try_every_change([](std::int64_t change) {
    const auto store = new_latest();
    publish(*store, 1).value();
    const WakePipe hub = new_hub();
    const bool killed = killed_at_change(change, [&] {
      const WakePipe own = new_hub();
      store->await_newer(1, own.address()).value();
      store->await_newer(1, own.address()).value();
    });
    REQUIRE_FALSE(store->await_newer(1, hub.address()).value());
    publish(*store, 2).value();
    REQUIRE(told(hub).size() == 1);
    recover(*store->arena());
    publish(*store, 3).value();
    REQUIRE(header_of(*store).awaiting_messages.is_empty());
    return killed;
  });
}

// guarantee: coroutines-sleep
TEST_CASE("A publisher killed anywhere loses no request") {
  try_every_change([](std::int64_t change) {
    const auto store = new_latest();
    publish(*store, 1).value();
    const WakePipe hub = new_hub();
    REQUIRE_FALSE(store->await_newer(1, hub.address()).value());
    const bool killed = killed_at_change(change, [&] { publish(*store, 2).value(); });
    recover(*store->arena());
    // Either the bit was cleared and the text sent, or the bit is left for the next publisher.
    std::vector<WakeText> texts = told(hub);
    const bool is_left = !header_of(*store).awaiting_messages.is_empty();
    publish(*store, 3).value();
    REQUIRE((is_left ? told(hub).size() : texts.size()) <= 1);
    REQUIRE(header_of(*store).awaiting_messages.is_empty());
    return killed;
  });
}

#endif
