// Broadcast: every reader gets each message once and in order. Puts wait for blocking readers; other readers may fall
// behind.
#include <thread>

#include "support/broadcasts.h"
#include "support/caller.h"
#include "support/catch2.h"
#include "support/versions.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

using Numbers = std::vector<std::uint64_t>;

void put_run(Ring& ring, std::uint64_t first, std::uint64_t count, std::size_t words = kSmallWords) {
  for (std::uint64_t i = 0; i < count; ++i) put(ring, first + i, words).value();
}

}  // namespace

// guarantee: broadcast-order
TEST_CASE("Subscribers get all later messages in order") {
  for (const std::size_t words : {kSmallWords, kBlockWords}) {
    const auto ring = new_ring();
    const auto one = subscribe(ring);
    put_run(*ring, 0, 2, words);
    const auto other = subscribe(ring);
    put_run(*ring, 2, 3, words);
    CHECK(one->size() == 5);
    CHECK(all_of(*one) == Numbers{0, 1, 2, 3, 4});
    CHECK(all_of(*other) == Numbers{2, 3, 4});
    CHECK(one->missed() == 0);
    CHECK(check_ring(*ring).empty());
  }
}

// guarantee: broadcast-frees
TEST_CASE("The last subscriber to release a message frees its memory") {
  const auto arena = new_arena();
  const auto ring = new_ring({}, arena);
  const auto one = subscribe_and_claim(ring), other = subscribe_and_claim(ring);
  const std::uint64_t empty = used_bytes(*arena);
  put(*ring, 7, kBlockWords).value();
  broadcast::Incoming first, second;
  one->get(first, no_wait()).value();
  first.block.reset();
  CHECK(used_bytes(*arena) == empty + 4096);
  other->get(second, no_wait()).value();
  CHECK(number_in(second) == 7);
  CHECK(used_bytes(*arena) == empty + 4096);
  second.block.reset();
  CHECK(used_bytes(*arena) == empty);
  CHECK(check_arena(*arena).empty());
}

// guarantee: broadcast-frees
TEST_CASE("Blocks behind small messages are freed by the last reader") {
  const auto arena = new_arena();
  const auto ring = new_ring({}, arena);
  const std::uint64_t empty = used_bytes(*arena);
  const auto one = subscribe_and_claim(ring), other = subscribe_and_claim(ring);
  put(*ring, 0).value();
  put_run(*ring, 1, 3, kBlockWords);
  CHECK(all_of(*other) == Numbers{0, 1, 2, 3});
  CHECK(used_bytes(*arena) == empty + (2 + 3) * 4096);
  one->close();
  CHECK(used_bytes(*arena) == empty + 4096);  // the page of the other subscription
}

TEST_CASE("A block passed while the lock was busy is freed by a put") {
  const auto arena = new_arena();
  const auto ring = new_ring({}, arena);
  const auto one = subscribe_and_claim(ring);
  const std::uint64_t empty = used_bytes(*arena);
  put(*ring, 0, kBlockWords).value();
  REQUIRE(arena->reclaimer().try_lock());
  CHECK(next(*one) == 0);
  arena->reclaimer().unlock();
  CHECK(used_bytes(*arena) == empty + 4096);
  put(*ring, 1).value();
  CHECK(used_bytes(*arena) == empty);
}

// guarantee: broadcast-frees
TEST_CASE("Unread messages of a killed subscriber are freed") {
  const auto arena = new_arena();
  const auto ring = new_ring({}, arena);
  const std::uint64_t empty = used_bytes(*arena);
  const Gate claimed;
  Child reading([&] {
    const auto reader = subscribe_and_claim(ring);
    claimed.open();
    pause();
    return true;
  });
  claimed.wait();
  put_run(*ring, 0, 3, kBlockWords);
  reading.kill_and_wait();
  ring->wait_until_passed(2, patience()).value();
  arena->participants().check(0);
  arena->reconcile(patience()).value();
  CHECK(used_bytes(*arena) == empty);
}

TEST_CASE("max_bytes limits unread bytes but admits one large message") {
  const auto ring = new_ring({.capacity = 8, .max_bytes = 4000});
  const auto reader = subscribe(ring);
  put_run(*ring, 0, 2, kBlockWords);
  CHECK(put(*ring, 2, kBlockWords, no_wait()).code() == Code::kFull);
  CHECK(all_of(*reader) == Numbers{0, 1});
  CHECK(put(*ring, 2, 10 * kBlockWords, no_wait()).ok());
  CHECK(put(*ring, 3, kSmallWords, no_wait()).code() == Code::kFull);
}

TEST_CASE("max_bytes counts the arrays that a message refers to") {
  const auto arena = new_arena();
  const auto ring = new_ring({.capacity = 8, .max_bytes = 100'000}, arena);
  const auto reader = subscribe(ring);
  const auto put_referring = [&] {
    const Lease array = new_lease(*arena, 60'000);
    auto block = arena->allocate(2000, BlockKind::kPublished, patience()).value();
    std::memset(block.data(), 0, 1000);
    const BlockRef referred[] = {array.ref()};
    arena->holders().refer(block, referred, patience()).value();
    broadcast::Outgoing outgoing{.block = std::move(block), .bytes = 1000};
    return ring->put(outgoing, no_wait());
  };
  CHECK(put_referring().ok());
  CHECK(put_referring().code() == Code::kFull);
  CHECK(ring->has_space());
  CHECK(all_of(*reader) == Numbers{0});
  CHECK(put_referring().ok());
  CHECK(check_ring(*ring) == "");
}

// guarantee: close-during-put
TEST_CASE("A message found after the last publisher left is returned") {
  const auto ring = new_ring();
  put(*ring, 1).value();
  ring->leave();
  REQUIRE(ring->check_publishers().code() == Code::kClosed);
  int polls = 0;  // two before the call sleeps, one after it has found that no publisher is left
  const auto poll = [&] { return ++polls == 3 ? success() : Status(Code::kEmpty); };
  CHECK(ring->wait_for_item(memory::WaitFor::kMessage, "a message", patience(), poll, [] { return false; }).ok());
  CHECK(polls == 3);
}

// guarantee: broadcast-kills
TEST_CASE("A closed or killed blocking subscriber blocks no put") {
  const auto ring = new_ring({.capacity = 2, .history = 1});
  auto reader = subscribe(ring);
  put_run(*ring, 0, 2);
  reader->close();
  put_run(*ring, 2, 2);
  const Gate reading;
  Child child([&] {
    const auto theirs = subscribe(ring, Policy::kBlock, true);
    reading.open(next(*theirs).value());
    pause();
    return true;
  });
  reading.wait();
  put_run(*ring, 4, 1);
  child.kill_and_wait();
  put_run(*ring, 5, 10);
  CHECK(ring->readers() == 0);
}

TEST_CASE("wait_until_passed waits only for blocking subscribers") {
  const auto ring = new_ring();
  const auto one = subscribe(ring), skips = subscribe(ring, Policy::kSkip);
  const std::uint64_t ticket = put(*ring, 1).value();
  CHECK(ring->wait_until_passed(ticket, no_wait()).code() == Code::kTimeout);
  CHECK(next(*one) == 1);
  CHECK(ring->wait_until_passed(ticket, no_wait()).ok());
}

// guarantee: lossy-subscriber-memory
TEST_CASE("A put without space drops messages of lossy subscribers") {
  const auto arena = new_arena(4 * kMiB);
  const auto ring = new_ring({.capacity = 16}, arena);
  const Policy policy = GENERATE(Policy::kSkip, Policy::kLatest, Policy::kRaise);
  const auto slow = subscribe(ring, policy, true);
  constexpr std::size_t kWords = kMiB / 2 / 8;
  for (std::uint64_t i = 0; i < 40; ++i) REQUIRE(put(*ring, i, kWords, no_wait()).ok());
  CHECK(check_ring(*ring) == "");
  CHECK(check_arena(*arena) == "");
  if (policy == Policy::kRaise) {
    broadcast::Incoming message;
    CHECK(slow->get(message, no_wait()).code() == Code::kOverrun);
  }
  auto numbers = all_of(*slow);
  REQUIRE_FALSE(numbers.empty());
  CHECK(numbers.back() == 39);
  CHECK(std::is_sorted(numbers.begin(), numbers.end()));
  CHECK(slow->missed() + numbers.size() == 40);
}

// guarantee: lossy-subscriber-memory
TEST_CASE("A put without space keeps history and blocking messages") {
  const auto arena = new_arena(4 * kMiB);
  const bool has_history = GENERATE(false, true);
  const auto ring = new_ring({.capacity = 16, .history = has_history ? 16u : 0u}, arena);
  const auto slow = subscribe(ring, Policy::kSkip, true);
  const auto blocking = has_history ? nullptr : subscribe(ring);
  constexpr std::size_t kWords = kMiB / 2 / 8;
  std::uint64_t went = 0;
  while (put(*ring, went, kWords, no_wait()).ok()) ++went;
  CHECK(went >= 4);
  CHECK(went < 16);
  const auto numbers = all_of(has_history ? *slow : *blocking);
  CHECK(numbers.size() == went);
  CHECK(numbers.front() == 0);
  CHECK(check_ring(*ring) == "");
}

TEST_CASE("A 257th subscription is refused and dead ones are reused") {
  const auto ring = new_ring();
  Child child([&] {
    std::vector<std::unique_ptr<Subscriber>> all;
    for (std::uint32_t i = 0; i < broadcast::kMaxCursors; ++i) all.push_back(subscribe(ring));
    const auto refused = Subscriber::create(ring, Policy::kSkip, false, patience());
    const bool named = refused.code() == Code::kInvalid && refused.error().message.find("256") != std::string::npos;
    return named && kill(getpid(), SIGKILL) == 0;
  });
  CHECK(child.was_killed());
  const auto reader = subscribe(ring);
  CHECK(ring->readers() == 1);
}

TEST_CASE("Another process opens a Broadcast by its block") {
  const auto arena = new_arena();
  const auto ring = new_ring({}, arena);
  const auto reader = subscribe(ring);
  Child child([&] { return put(*Ring::open(arena, ring->block(), patience()).value(), 3).ok(); });
  REQUIRE(child.succeeded());
  CHECK(next(*reader) == 3);
  const Lease array = new_lease(*arena, 100'000);
  CHECK(Ring::open(arena, array.ref(), patience()).code() == Code::kIncompatible);
  CHECK(Ring::create(arena, {.capacity = 0}, patience()).code() == Code::kInvalid);
}

TEST_CASE("open names both layout versions of a Broadcast") {
  const auto arena = new_arena();
  auto ring = new_ring({}, arena);
  const BlockRef block = ring->block();
  const Lease kept = arena->hold_existing(block, BlockKind::kBroadcast, patience()).value();
  ring.reset();
  reinterpret_cast<broadcast::RingHeader*>(kept.data())->version = 77;
  const auto opened = Ring::open(arena, block, patience());
  CHECK(names_versions(opened.error(), 77, broadcast::kRingVersion));
}

TEST_CASE("A process forks while a thread of it waits for a message") {
  const auto ring = new_ring();
  const auto reader = subscribe(ring);
  std::atomic<bool> got{false};
  Caller waiting([&](const std::stop_token&) { got = next(*reader, patience()) == 5; });
  Child child([&] { return put(*ring, 5).ok(); });
  CHECK(child.succeeded());
  waiting.join();
  CHECK(got);
}

TEST_CASE("Messages kept for a dead lossy subscriber are freed") {
  const auto arena = new_arena();
  const auto ring = new_ring({.capacity = 4}, arena);
  const std::uint64_t empty = used_bytes(*arena);
  Child child([&] {
    const auto reader = subscribe(ring, Policy::kSkip);
    return kill(getpid(), SIGKILL) == 0;
  });
  CHECK(child.was_killed());
  while (ring->readers() != 0) put(*ring, 1, kBlockWords).value();
  arena->participants().check(0);
  put(*ring, 2, kBlockWords).value();
  CHECK(used_bytes(*arena) == empty);
}
