// Messages that are taken, acknowledged and returned.
#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "support/catch2.h"
#include "support/channels.h"
#include "support/waits.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

std::shared_ptr<Channel> channel_of(std::uint64_t count, std::size_t words = 1) {
  auto channel = new_channel(new_arena(), with_capacity(0));
  for (std::uint64_t i = 0; i < count; ++i) put(*channel, i, words).value();
  return channel;
}

// A process that has taken a message, and does nothing with it.
struct StandingTaker {
  explicit StandingTaker(Channel& channel)
      : child([&] {
          Delivery delivery = take(channel).value();
          taken.open();
          pause();
          return true;
        }) {
    taken.wait();
  }
  Gate taken;
  Child child;
};

}  // namespace

TEST_CASE("An acked message is removed and its memory is freed") {
  auto channel = channel_of(0);
  { take(*channel, no_wait()).ok(); }
  put(*channel, 1).value();
  { REQUIRE(take(*channel).value().ack(patience()).ok()); }  // the first take allocates the delivery records
  const std::uint64_t before = used_bytes(*channel->arena());
  put(*channel, 7, 5'000).value();
  {
    Delivery delivery = take(*channel).value();
    REQUIRE(number_in(delivery) == 7);
    REQUIRE_FALSE(delivery.message().redelivered());
    REQUIRE(used_bytes(*channel->arena()) > before);
    REQUIRE(delivery.ack(patience()).ok());
    REQUIRE(delivery.settled());
    REQUIRE(number_in(delivery) == 7);  // still pinned
  }
  REQUIRE(used_bytes(*channel->arena()) == before);
  REQUIRE(code_of(get(*channel, no_wait())) == Code::kEmpty);
}

TEST_CASE("Nacked messages are redelivered in their original order") {
  for (const std::size_t words : {1u, 1'000u}) {
    auto channel = channel_of(20, words);
    std::vector<Delivery> deliveries;
    for (int i = 0; i < 12; ++i) deliveries.push_back(take(*channel).value());
    for (const std::size_t i : {11u, 3u, 7u, 0u, 5u, 1u, 10u, 2u, 9u, 4u, 8u, 6u})
      REQUIRE(deliveries[i].nack(patience()).ok());
    for (std::uint64_t i = 0; i < 20; ++i) {
      Delivery again = take(*channel).value();
      REQUIRE(number_in(again) == i);
      REQUIRE(again.message().redelivered() == (i < 12));
      REQUIRE(again.ack(patience()).ok());
    }
    deliveries.clear();
    REQUIRE(check_arena(*channel->arena()) == "");
  }
}

TEST_CASE("Hundreds of deliveries may be unacked at once") {
  constexpr std::uint64_t kCount = 300;
  auto channel = channel_of(kCount, 61);
  {
    std::vector<Delivery> deliveries;
    for (std::uint64_t i = 0; i < kCount; ++i) deliveries.push_back(take(*channel).value());
    for (std::uint64_t i = 0; i < kCount; ++i) REQUIRE(number_in(deliveries[i]) == i);
    REQUIRE(channel->stats().taken == kCount);
    REQUIRE(check_arena(*channel->arena()) == "");
    for (std::uint64_t i = 0; i < kCount; i += 2) REQUIRE(deliveries[i].ack(patience()).ok());
  }
  for (std::uint64_t i = 1; i < kCount; i += 2) REQUIRE(get(*channel, no_wait()).value() == i);
  REQUIRE(channel->size() == 0);
}

TEST_CASE("Free delivery records are reused in any ack order") {
  constexpr std::uint64_t kCount = 200;
  auto channel = channel_of(kCount);
  std::vector<Delivery> deliveries;
  for (std::uint64_t i = 0; i < kCount; ++i) deliveries.push_back(take(*channel).value());
  const std::uint64_t blocks = channel->arena()->inspector().stats().blocks;
  std::minstd_rand random(1);
  for (std::uint64_t number = kCount, round = 0; round < 200; ++round) {
    const std::uint64_t settled = 1 + random() % kCount;
    std::shuffle(deliveries.begin(), deliveries.end(), random);
    for (std::uint64_t i = 0; i < settled; ++i) REQUIRE(deliveries[i].ack(patience()).ok());
    for (std::uint64_t i = 0; i < settled; ++i, ++number) {
      put(*channel, number).value();
      deliveries[i] = take(*channel).value();
      REQUIRE(number_in(deliveries[i]) == number);
    }
    REQUIRE(channel->stats().taken == kCount);
  }
  REQUIRE(channel->arena()->inspector().stats().blocks == blocks);
}

TEST_CASE("Takers that run out of records together lose no message") {
  constexpr int kTakers = 4;
  auto channel = channel_of(600);
  auto seen = new_channel(channel->arena(), with_capacity(0));
  const auto act = [&] {
    std::vector<Delivery> deliveries;
    for (;;) {
      auto delivery = take(*channel, no_wait());
      if (!delivery) break;
      deliveries.push_back(std::move(*delivery));
    }
    for (Delivery& delivery : deliveries) {
      if (!put(*seen, number_in(delivery)).ok() || !delivery.ack(patience()).ok()) return false;
    }
    return true;
  };
  {
    Child takers[kTakers]{Child(act), Child(act), Child(act), Child(act)};
    for (Child& taker : takers) REQUIRE(taker.succeeded());
  }
  const auto numbers = drain(*seen);
  REQUIRE(std::set<std::uint64_t>(numbers.begin(), numbers.end()).size() == 600);
  REQUIRE(numbers.size() == 600);
}

// guarantee: take-is-redelivered
TEST_CASE("Messages of a killed taker are redelivered once and first") {
  for (const std::size_t words : {1u, 2'000u}) {
    auto channel = channel_of(12, words);
    Gate ready;
    Child taker([&] {
      std::vector<Delivery> deliveries;
      for (int i = 0; i < 9; ++i) deliveries.push_back(take(*channel).value());
      deliveries[4].ack(patience()).value();
      ready.open();
      pause();
      return true;
    });
    ready.wait();
    REQUIRE(channel->size() == 3);
    taker.kill_and_wait();
    channel->arena()->participants().check(0);
    REQUIRE(channel->arena()->reconcile(patience()).ok());
    for (const std::uint64_t i : {0u, 1u, 2u, 3u, 5u, 6u, 7u, 8u, 9u, 10u, 11u}) {
      auto message = get_message(*channel, patience());
      REQUIRE(number_in(message->frame()) == i);
      REQUIRE(message->redelivered() == (i < 9));
    }
    REQUIRE(code_of(get(*channel, no_wait())) == Code::kEmpty);
    REQUIRE(check_arena(*channel->arena()) == "");
  }
}

TEST_CASE("A blocked receiver gets the message of a killed taker") {
  auto channel = channel_of(1);
  StandingTaker taker(*channel);
  taker.child.signal(SIGKILL);
  auto message = get_message(*channel, patience());
  REQUIRE(message.ok());
  REQUIRE(message->redelivered());
}

// guarantee: take-is-redelivered
TEST_CASE("A busy channel redelivers the message of a killed taker") {
  auto channel = channel_of(2);
  StandingTaker taker(*channel);
  taker.child.kill_and_wait();
  const auto give_up_at = Deadline::after_ns(30'000'000'000);
  bool came_back = false;
  while (!came_back && !give_up_at.passed()) {
    put(*channel, 7).value();
    Delivery delivery = take(*channel).value();
    came_back = delivery.message().redelivered();
    delivery.ack(patience()).value();
  }
  REQUIRE(came_back);
}

// guarantee: fork-in-a-call
TEST_CASE("A forked child cannot put a block that its parent wrote") {
  auto arena = new_arena();
  auto channel = new_channel(arena);
  Outgoing message;
  message.block = new_block(*arena, 8192);
  message.bytes = 32;
  fill(message.block.data(), 7, 4);
  Child child([&] { return code_of(channel->sending().put(message, patience())) == Code::kInvalid; });
  REQUIRE(child.succeeded());
  channel->sending().put(message, patience()).value();
  REQUIRE(drain(*channel) == std::vector<std::uint64_t>{7});
}

TEST_CASE("A forked child cannot ack the delivery of its parent") {
  auto channel = channel_of(1);
  Delivery delivery = take(*channel).value();
  Child child([&] { return code_of(delivery.ack(patience())) == Code::kInvalid && delivery.settled(); });
  REQUIRE(child.succeeded());
  REQUIRE(channel->size() == 0);
  REQUIRE(delivery.ack(patience()).ok());
}

TEST_CASE("A delivery dropped while the lock is held is redelivered") {
  auto channel = channel_of(1);
  Gate taken, locked;
  Child owner([&] {
    taken.wait();
    channel->arena()->lock(header_of(*channel).receivers_lock, patience()).value();
    locked.open();
    pause();
    return true;
  });
  Delivery delivery = take(*channel).value();
  taken.open();
  locked.wait();
  { Delivery dropped = std::move(delivery); }
  owner.kill_and_wait();
  auto message = get_message(*channel, patience());
  REQUIRE(message.ok());
  REQUIRE(message->redelivered());
  REQUIRE(check_arena(*channel->arena()) == "");
}

TEST_CASE("Dropping a delivery neither sleeps nor runs a recovery") {
  auto channel = channel_of(2);
  Gate taken, locked;
  Child owner([&] {
    taken.wait();
    channel->arena()->lock(header_of(*channel).receivers_lock, patience()).value();
    locked.open();
    pause();
    return true;
  });
  Delivery first = take(*channel).value(), second = take(*channel).value();
  taken.open();
  locked.wait();
  { Delivery dropped = std::move(first); }
  // A sleeping thread would have set kContended.
  REQUIRE((header_of(*channel).receivers_lock.load() & (memory::kHeld | memory::kContended)) == memory::kHeld);
  const std::uint64_t recoveries = channel->arena()->header().reconciles.load();
  REQUIRE(memory::needs_recovery(channel->arena()->header()));
  { Delivery dropped = std::move(second); }
  REQUIRE(channel->arena()->header().reconciles.load() == recoveries);
  owner.kill_and_wait();
  for (int i = 0; i < 2; ++i) REQUIRE(get_message(*channel, patience()).value().redelivered());
  REQUIRE(check_arena(*channel->arena()) == "");
}

TEST_CASE("Dropping a delivery wakes poll loops if recovery is pending") {
  auto channel = channel_of(1);
  Delivery delivery = take(*channel).value();
  const int fd = channel->watchers().wake_fd(End::kReceiving).value();
  REQUIRE_FALSE(readable(fd));
  memory::request_recovery(channel->arena()->header());
  { Delivery dropped = std::move(delivery); }
  REQUIRE(readable(fd, 60'000));
  REQUIRE(get_message(*channel, no_wait()).value().redelivered());
}

TEST_CASE("A stream stays open while another process may nack") {
  auto channel = channel_of(1);
  Gate taken, go;
  Child taker([&] {
    Delivery delivery = take(*channel).value();
    taken.open();
    go.wait();
    return delivery.nack(patience()).ok();
  });
  taken.wait();
  channel->membership().leave(End::kSending);
  REQUIRE(code_of(get(*channel, no_wait())) == Code::kEmpty);
  go.open();
  REQUIRE(get(*channel).value() == 0);
  REQUIRE(taker.succeeded());
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

TEST_CASE("A nacked message is unacked until it is received again") {
  auto channel = channel_of(1);
  take(*channel).value().nack(patience()).value();
  REQUIRE(code_of(channel->acks().wait({}, no_wait())) == Code::kTimeout);
  REQUIRE(channel->acks().pending() == 1);
  get(*channel).value();
  REQUIRE(channel->acks().wait({}, no_wait()).ok());
  REQUIRE(channel->acks().pending() == 0);
}

TEST_CASE("Pending messages are counted for each process and segment") {
  auto channel = new_channel(new_arena(), with_capacity(0));
  const auto put_some = [&](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) put(*channel, i).value();
  };
  put_some(100);
  Child child([&] {
    put_some(50);
    return channel->acks().pending() == 50;
  });
  REQUIRE(child.succeeded());
  put_some(300);
  REQUIRE(channel->acks().pending() == 400);
  for (int i = 0; i < 120; ++i) get(*channel).value();
  REQUIRE(channel->acks().pending() == 300);
  for (int i = 0; i < 330; ++i) get(*channel).value();
  REQUIRE(channel->acks().pending() == 0);
}

TEST_CASE("Parent and child wait only for acks of their own messages") {
  auto channel = channel_of(1);
  Child child([&] {
    const bool none_yet = channel->acks().pending() == 0 && channel->acks().wait({}, no_wait()).ok();
    return put(*channel, 5).ok() && none_yet && channel->acks().pending() == 1;
  });
  REQUIRE(child.succeeded());
  REQUIRE(channel->acks().pending() == 1);
  get(*channel).value();
  REQUIRE(channel->acks().wait({}, no_wait()).ok());
  REQUIRE(channel->size() == 1);
}

TEST_CASE("An ack waiter loses no wake-up and takes none from a sender") {
  constexpr std::int64_t kAcks = 200, kLostMs = kAcks * 30;  // a lost wake-up costs 50 ms each
  const auto put_and_wait = [] {
    auto small = new_channel(new_arena(), with_capacity(1));
    put(*small, 1).value();
    Child receiver([&] {
      for (int i = 0; i < 2 * kAcks; ++i) {
        auto number = get(*small);
        if (!number) return false;
      }
      return true;
    });
    Child acks([&] {
      for (int i = 0; i < kAcks; ++i) {
        if (!put(*small, 2).ok() || !small->acks().wait({}, patience()).ok()) return false;
      }
      return true;
    });
    for (int i = 0; i < kAcks - 1; ++i) REQUIRE(put(*small, 3).ok());
    REQUIRE(receiver.succeeded());
    REQUIRE(acks.succeeded());
  };
  REQUIRE(shortest_ms(kLostMs, put_and_wait) < kLostMs);
}
