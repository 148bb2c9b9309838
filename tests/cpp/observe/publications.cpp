// An observer's view of Latests, Broadcasts and replay buffers.
#include "platform/machine.h"
#include "support/broadcasts.h"
#include "support/catch2.h"
#include "support/latests.h"
#include "support/replays.h"
#include "support/snapshots.h"

using namespace shmtree;
using namespace shmtree::test;

TEST_CASE("A Latest is observed with its version and publishers") {
  const auto store = new_latest(3);
  publish(*store, 1).value();
  publish(*store, 2).value();
  const ObservedArena seen = look_at(*store->arena());
  REQUIRE(seen.latests.size() == 1);
  CHECK(seen.latests[0].version == 2);
  CHECK(seen.latests[0].history == 3);
  CHECK(seen.latests[0].publishers == std::vector<int>{process_id()});
}

TEST_CASE("A failed publisher is not observed as a publisher") {
  const auto store = new_latest(3);
  const auto other = latest::Store::open(store->arena(), store->block(), no_wait()).value();
  publish(*store, 1).value();
  store->close(memory::Failure::kNoExitCode);
  other->close();
  CHECK(look_at(*store->arena()).latests[0].publishers.empty());
}

TEST_CASE("A Broadcast is observed with its subscribers and their lag") {
  const auto ring = new_ring({.capacity = 10});
  const auto reader = subscribe_and_claim(ring);
  const auto unclaimed = subscribe(ring, Policy::kSkip);
  for (std::uint64_t number = 0; number < 5; ++number) put(*ring, number).value();
  next(*reader);
  const ObservedArena seen = look_at(*ring->arena());
  REQUIRE(seen.broadcasts.size() == 1);
  const ObservedBroadcast& one = seen.broadcasts[0];
  CHECK(one.put == 5);
  CHECK(one.capacity == 10);
  CHECK(one.kept == 5);
  CHECK(one.publishers == std::vector<int>{process_id()});
  REQUIRE(one.subscribers.size() == 2);
  CHECK(one.subscribers[0].pid == process_id());
  CHECK(one.subscribers[0].behind == 4);
  CHECK(one.subscribers[0].blocks);
  CHECK_FALSE(one.subscribers[1].pid.has_value());
  CHECK_FALSE(one.subscribers[1].blocks);
}

TEST_CASE("A replay buffer is observed with its number of ready rows") {
  const auto store = new_store({.capacity = 1000});
  Writer writer(store, 1);
  for (std::uint64_t number = 0; number < 150; ++number) add(writer, number).value();
  const ObservedArena seen = look_at(*store->arena());
  REQUIRE(seen.replays.size() == 1);
  CHECK(seen.replays[0].capacity == 1000);
  CHECK(seen.replays[0].rows == 150);
  CHECK(seen.replays[0].rows == store->size());
  CHECK(seen.replays[0].chunks == store->window().tail - store->window().head);
}
