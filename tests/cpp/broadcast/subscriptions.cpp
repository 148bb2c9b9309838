// Subscriptions that were made and not used yet: which process owns them, and when they end.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>
#include <utility>
#include <vector>

#include "memory/transfers.h"
#include "support/broadcasts.h"
#include "support/caller.h"
#include "support/catch2.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

Code code_of_get(Subscriber& reader) {
  broadcast::Incoming message;
  return reader.get(message, no_wait()).code();
}
bool names(const Error& error, const std::vector<pid_t>& pids) {
  return std::all_of(pids.begin(), pids.end(),
                     [&](pid_t pid) { return error.message.find(std::to_string(pid)) != std::string::npos; });
}
// Puts a subscription in transit. Returns its block, and the number of its transfer.
std::pair<BlockRef, std::uint64_t> give(Subscriber& reader) {
  const BlockRef block = reader.give().value();
  const auto number =
      memory::begin_transfer(reader.ring()->arena(), memory::pack(block), memory::Transferred::kMemory).value();
  return {block, number};
}
bool is_full(Ring& ring) {
  return put(ring, 9, kSmallWords, no_wait()).code() == Code::kFull;
}

}  // namespace

// guarantee: broadcast-unread-subscription
TEST_CASE("An unused subscription ends with its last attached process") {
  const auto ring = new_ring({.capacity = 1});
  const auto reader = subscribe(ring);
  const Gate begun, close, closed, end;
  Child child([&] {
    begun.open();
    close.wait();
    reader->close();
    closed.open();
    end.wait();
    return true;
  });
  Child other([&] {
    begun.open();
    pause();
    return true;
  });
  for (int i = 0; i < 2; ++i) begun.wait();
  put(*ring, 0).value();
  const auto refused = put(*ring, 1, kSmallWords, no_wait());
  REQUIRE(refused.code() == Code::kFull);
  CHECK(names(refused.error(), {getpid(), child.pid(), other.pid()}));
  CHECK(refused.error().message.find("never used") != std::string::npos);
  reader->close();
  CHECK(is_full(*ring));
  close.open();
  closed.wait();
  CHECK(is_full(*ring));
  CHECK(ring->readers() == 1);
  other.kill_and_wait();
  CHECK(put(*ring, 1).ok());
  CHECK(ring->readers() == 0);
  end.open();
  CHECK(child.succeeded());
  CHECK(check_ring(*ring).empty());
}

TEST_CASE("The first get makes a subscription exclusive to its process") {
  const auto ring = new_ring({.capacity = 1});
  const auto reader = subscribe(ring);
  put(*ring, 0).value();
  const Gate read;
  Child child([&] {
    read.open(next(*reader) == 0);
    pause();
    return true;
  });
  read.wait();
  put(*ring, 1).value();
  const auto refused = put(*ring, 2, kSmallWords, no_wait());
  REQUIRE(refused.code() == Code::kFull);
  CHECK(refused.error().message.find("process " + std::to_string(child.pid()) + " has not") != std::string::npos);
  child.kill_and_wait();
  CHECK(put(*ring, 2).ok());
  CHECK(code_of_get(*reader) == Code::kClosed);
}

// guarantee: broadcast-unread-subscription
TEST_CASE("A subscription in transit lasts until its receiver ends it") {
  const auto arena = new_arena();
  const auto ring = new_ring({.capacity = 1}, arena);
  const std::uint64_t empty = used_bytes(*arena);
  enum class Then { kReads, kCloses, kDrops, kIsKilled };
  const Then then = GENERATE(Then::kReads, Then::kCloses, Then::kDrops, Then::kIsKilled);
  auto given = subscribe(ring);
  const auto [block, number] = give(*given);
  given.reset();
  CHECK(ring->readers() == 1);
  put(*ring, 0).value();
  const auto refused = put(*ring, 1, kSmallWords, no_wait());
  CHECK(refused.code() == Code::kFull);
  CHECK(names(refused.error(), {getpid()}));
  const Gate arrived, done;
  Child child([&, number = number, block = block] {
    auto reader = Subscriber::open(arena, block, patience()).value();
    memory::end_transfer(*arena, memory::pack(block), number);
    arrived.open();
    done.wait();
    if (then == Then::kReads && next(*reader) != 0) return false;
    if (then == Then::kCloses) reader->close();
    if (then == Then::kDrops) reader.reset();
    if (then != Then::kIsKilled) arrived.open();
    pause();
    return true;
  });
  arrived.wait();
  CHECK(is_full(*ring));
  done.open();
  if (then == Then::kIsKilled) {
    child.kill_and_wait();
  } else {
    arrived.wait();
  }
  CHECK(put(*ring, 1).ok());
  CHECK(ring->readers() == (then == Then::kReads ? 1 : 0));
  if (then != Then::kIsKilled) child.kill_and_wait();
  CHECK(put(*ring, 2).ok());
  CHECK(ring->readers() == 0);
  memory::sweep_transfers();
  arena->participants().check(0);
  arena->reconcile(patience()).value();
  CHECK(used_bytes(*arena) == empty);
}

// guarantee: broadcast-unread-subscription
TEST_CASE("A subscription in transit ends when its giver dies") {
  const auto arena = new_arena();
  const auto ring = new_ring({.capacity = 1}, arena);
  const Gate forked;
  pid_t kept = 0;
  Child giver([&] {
    auto reader = subscribe(ring);
    give(*reader);
    reader.reset();
    const pid_t child = fork();
    if (child == 0) {
      pause();
      _exit(0);
    }
    forked.open(static_cast<std::uint64_t>(child));
    pause();
    return true;
  });
  kept = static_cast<pid_t>(forked.wait());
  put(*ring, 0).value();
  CHECK(is_full(*ring));
  giver.kill_and_wait();
  CHECK(put(*ring, 1).ok());
  CHECK(ring->readers() == 0);
  kill(kept, SIGKILL);
}

// guarantee: broadcast-unread-subscription
TEST_CASE("Closing a subscription cancels its transfers") {
  const auto arena = new_arena();
  const auto ring = new_ring({.capacity = 1}, arena);
  const std::uint64_t empty = used_bytes(*arena);
  const auto closed = subscribe(ring);
  const auto [late, number] = give(*closed);
  closed->close();
  CHECK(ring->readers() == 0);
  CHECK(used_bytes(*arena) == empty);
  const auto gone = Subscriber::open(arena, late, patience());
  CHECK(gone.code() == Code::kNotFound);
  CHECK(gone.error().message.find("the subscription no longer exists: its processes closed it") == 0);
  CHECK(closed->give().code() == Code::kClosed);
}

TEST_CASE("A subscription stays alive until its last transfer ends") {
  const auto arena = new_arena();
  const auto ring = new_ring({.capacity = 1}, arena);
  auto given = subscribe(ring);
  std::vector<std::uint64_t> numbers;
  BlockRef block;
  for (int i = 0; i < 20; ++i) {
    const auto [ref, number] = give(*given);
    block = ref;
    numbers.push_back(number);
  }
  given.reset();
  put(*ring, 0).value();
  for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
    memory::end_transfer(*arena, memory::pack(block), numbers[i]);
  }
  CHECK(is_full(*ring));
  CHECK(next(*Subscriber::open(arena, block, patience()).value()) == 0);
  CHECK(put(*ring, 1).ok());
}

TEST_CASE("A subscription in use cannot be transferred") {
  const auto ring = new_ring();
  const auto reader = subscribe_and_claim(ring);
  CHECK(reader->give().code() == Code::kClosed);
  CHECK(Subscriber::open(ring->arena(), ring->block(), patience()).code() == Code::kIncompatible);
}

TEST_CASE("A received subscription and its Broadcast outlive the giver") {
  const auto arena = new_arena();
  const Gate given;
  Child giver([&] {
    const auto reader = subscribe(new_ring({}, arena));
    put(*reader->ring(), 7).value();
    given.open(memory::pack(reader->give().value()));
    pause();
    return true;
  });
  const BlockRef block = memory::unpack(given.wait());
  auto mine = Subscriber::open(arena, block, patience()).value();
  const auto another = Subscriber::open(arena, block, patience()).value();
  giver.kill_and_wait();
  arena->participants().check(0);
  arena->reconcile(patience()).value();
  CHECK(next(*mine) == 7);
  CHECK(mine->ring() == another->ring());
  mine->close();
  CHECK(code_of_get(*another) == Code::kClosed);
}

// guarantee: broadcast-lock-timeout
TEST_CASE("Subscribing waits for a stopped lock owner or names it") {
  const auto arena = new_arena();
  const auto ring = new_ring({}, arena);
  const Gate taken, go_on;
  Child owner([&] {
    if (!arena->reconciler().lock_arena(patience()).ok()) return false;
    taken.open();
    go_on.wait();
    arena->reclaimer().unlock();
    return true;
  });
  taken.wait();
  owner.signal(SIGSTOP);
  owner.wait_until_stopped();
  const auto refused = Subscriber::create(ring, Policy::kBlock, false, patience(100));
  REQUIRE(refused.code() == Code::kTimeout);
  CHECK(names(refused.error(), {owner.pid()}));
  CHECK(refused.error().message.find("memory") == std::string::npos);
  std::atomic<bool> has_subscribed{false};
  Caller waiting([&](const std::stop_token&) { has_subscribed = subscribe(ring) != nullptr; });
  owner.signal(SIGCONT);
  go_on.open();
  waiting.join();
  CHECK(has_subscribed);
  CHECK(owner.succeeded());
}

TEST_CASE("Children forked during a get do not share the subscription") {
  const auto ring = new_ring();
  const auto reader = subscribe_and_claim(ring);
  std::atomic<bool> done{false};
  std::jthread reading([&] {
    while (!done) code_of_get(*reader);
  });
  int good = 0;
  for (int i = 0; i < 20; ++i) good += Child([&] { return code_of_get(*reader) == Code::kClosed; }).succeeded();
  done = true;
  CHECK(good == 20);
}
