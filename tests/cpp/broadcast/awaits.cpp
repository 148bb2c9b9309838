// Coroutines that await space in a Broadcast: the reader that makes the space sends one text to their hub.
#include "support/broadcasts.h"
#include "support/catch2.h"
#include "support/crash_states.h"
#include "support/hubs.h"
#include "support/process.h"
#include "support/stepped_child.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

broadcast::RingHeader& header_of(const Ring& ring) {
  return reinterpret_cast<broadcast::RingHeader*>(&ring.cursor(0))[-1];
}
// Fills the ring until a blocking reader is `capacity` messages behind.
void fill(Ring& ring) {
  while (put(ring, ring.tail(), kSmallWords, no_wait()).ok()) continue;
}
// Asks for a text as a coroutine does after an attempt that found no space.
void await_space(Ring& ring, const WakePipe& hub) {
  const std::uint64_t first_unread = ring.first_unread();
  REQUIRE_FALSE(ring.has_space());
  REQUIRE(ring.await_space(hub.address()).ok());
  REQUIRE(ring.first_unread() == first_unread);
}

}  // namespace

TEST_CASE("Each request to await space gets one wake text") {
  const auto ring = new_ring({.capacity = 2});
  const auto reader = subscribe(ring);
  const WakePipe hub = new_hub();
  for (int i = 0; i < 3; ++i) {
    fill(*ring);
    CHECK(told(hub).empty());
    await_space(*ring, hub);
    next(*reader);
    CHECK(told(hub) == std::vector{ring->space_name()});
    next(*reader);
    CHECK(told(hub).empty());
  }
  CHECK(ring->space_name() != ring->name());
}

TEST_CASE("A reader sends no wake text while another one is slower") {
  const auto ring = new_ring({.capacity = 2});
  const auto fast = subscribe(ring), slow = subscribe(ring), lossy = subscribe(ring, Policy::kSkip);
  const WakePipe hub = new_hub();
  fill(*ring);
  await_space(*ring, hub);
  next(*fast);
  next(*lossy);
  CHECK(told(hub).empty());
  next(*slow);
  CHECK(told(hub).size() == 1);
}

TEST_CASE("A blocking reader that leaves wakes publishers") {
  const auto ring = new_ring({.capacity = 2});
  auto closed = subscribe(ring), dropped = subscribe(ring);
  const WakePipe hub = new_hub();
  fill(*ring);
  await_space(*ring, hub);
  closed->close();
  CHECK(told(hub).empty());
  dropped.reset();
  CHECK(told(hub).size() == 1);
  CHECK(ring->has_space());
}

TEST_CASE("The process that drops a dead reader wakes publishers") {
  const auto ring = new_ring({.capacity = 2});
  Child child([&] {
    subscribe_and_claim(ring).release();
    std::_Exit(0);
    return true;
  });
  child.succeeded();
  const WakePipe hub = new_hub();
  put(*ring, 0).value();
  put(*ring, 1).value();
  REQUIRE(ring->await_space(hub.address()).ok());
  CHECK(put(*ring, 2).ok());
  CHECK(told(hub).size() == 1);
}

TEST_CASE("A get by another process notifies a hub that awaits space") {
  const auto ring = new_ring({.capacity = 2});
  const auto reader = subscribe(ring);
  const WakePipe hub = new_hub();
  fill(*ring);
  await_space(*ring, hub);
  Child child([&] { return next(*reader) == 0; });
  REQUIRE(child.succeeded());
  CHECK(told(hub) == std::vector{ring->space_name()});
}

#if defined(SHMTREE_CRASH_POINTS)

// guarantee: coroutines-space
TEST_CASE("A process killed while it awaits space leaves no request") {
  try_every_change([](std::int64_t change) {
    const auto ring = new_ring({.capacity = 2});
    const auto reader = subscribe_and_claim(ring);
    const WakePipe hub = new_hub();
    fill(*ring);
    const bool killed = killed_at_change(change, [&] {
      const WakePipe own = new_hub();
      ring->await_space(own.address()).value();
      ring->await_space(own.address()).value();
    });
    await_space(*ring, hub);
    next(*reader);
    REQUIRE(told(hub).size() == 1);
    recover(*ring->arena());
    next(*reader);
    REQUIRE(header_of(*ring).awaiting_space.is_empty());
    return killed;
  });
}

namespace {

// Requires that a request which a dead reader has not served is served by the next reader.
void require_no_lost_request(Ring& ring, Subscriber& other, const WakePipe& hub, std::uint64_t before) {
  const bool is_left = !header_of(ring).awaiting_space.is_empty();
  const std::size_t texts = told(hub).size();
  REQUIRE(texts + (is_left ? 1 : 0) <= 1);
  recover(*ring.arena());
  ring.has_space();  // a periodic check of the waiting process drops the dead reader's cursor
  while (next(other)) continue;
  REQUIRE(ring.has_space());
  REQUIRE(ring.first_unread() != before);
  REQUIRE(header_of(ring).awaiting_space.is_empty());
  if (is_left) REQUIRE(told(hub) == std::vector{ring.space_name()});
}

}  // namespace

TEST_CASE("A reader killed at any store loses no request for space") {
  try_every_change([](std::int64_t change) {
    const auto ring = new_ring({.capacity = 2});
    const auto other = subscribe_and_claim(ring);
    auto killed_reader = subscribe(ring);
    const WakePipe hub = new_hub();
    fill(*ring);
    await_space(*ring, hub);
    const std::uint64_t before = ring->first_unread();
    const bool killed = killed_at_change(change, [&] {
      while (next(*killed_reader)) continue;
      while (put(*ring, 5, kSmallWords, no_wait()).ok()) continue;
    });
    killed_reader.reset();
    require_no_lost_request(*ring, *other, hub, before);
    return killed;
  });
}

// guarantee: coroutines-space
TEST_CASE("A reader killed at any step loses no request for space") {
  if (!can_step()) return;
  const int kills = kill_everywhere(1, [](std::int64_t change, int further) {
    INFO("killed " << further << " instructions after change " << change);
    const auto ring = new_ring({.capacity = 2}, new_arena(2 * kMiB));
    const auto other = subscribe_and_claim(ring);
    auto killed_reader = subscribe(ring);
    const WakePipe hub = new_hub();
    fill(*ring);
    await_space(*ring, hub);
    const std::uint64_t before = ring->first_unread();
    SteppedChild child(change, [&] {
      next(*killed_reader);
      killed_reader->close();
    });
    const Stepped stepped = child.step(further);
    child.kill_now();
    killed_reader.reset();
    require_no_lost_request(*ring, *other, hub, before);
    return stepped;
  });
  CHECK(kills > 40);
}

TEST_CASE("A process killed while it awaits space harms no reader") {
  if (!can_step()) return;
  const int kills = kill_everywhere(48, [](std::int64_t change, int further) {
    INFO("killed " << further << " instructions after change " << change);
    const auto ring = new_ring({.capacity = 2}, new_arena(2 * kMiB));
    const auto reader = subscribe_and_claim(ring);
    const WakePipe hub = new_hub(), own = new_hub();
    fill(*ring);
    SteppedChild child(change, [&] { ring->await_space(own.address()).value(); });
    const Stepped stepped = child.step(further);
    child.kill_now();
    await_space(*ring, hub);
    next(*reader);
    REQUIRE(told(hub).size() == 1);
    recover(*ring->arena());
    next(*reader);
    REQUIRE(header_of(*ring).awaiting_space.is_empty());
    REQUIRE(check_ring(*ring) == "");
    return stepped;
  });
  CHECK(kills > 10);
}

#endif
