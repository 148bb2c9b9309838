// Channels with puts that drop the oldest messages instead of blocking.
#include <unistd.h>

#include <thread>

#include "support/catch2.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

std::shared_ptr<Channel> dropping(std::uint64_t capacity, std::shared_ptr<memory::Arena> arena = new_arena()) {
  ChannelOptions options = with_capacity(capacity);
  options.drop_oldest = true;
  return new_channel(std::move(arena), options);
}

}  // namespace

// guarantee: drop-oldest
TEST_CASE("A put into a full channel drops and counts the oldest") {
  auto channel = dropping(3);
  for (int i = 0; i < 10; ++i) put(*channel, static_cast<std::uint64_t>(i), 1, no_wait()).value();
  REQUIRE(channel->stats().dropped == 7);
  REQUIRE(channel->stats().received == 0);
  REQUIRE(channel->size() == 3);
  for (int i = 7; i < 10; ++i) REQUIRE(get(*channel).value() == static_cast<std::uint64_t>(i));
  REQUIRE(channel->stats().received == 3);
  REQUIRE(channel->stats().dropped == 7);
}

TEST_CASE("A nacked message is dropped first") {
  auto channel = dropping(2);
  put(*channel, 1).value();
  put(*channel, 2).value();
  take(*channel).value().nack(patience()).value();
  put(*channel, 3).value();
  REQUIRE(get(*channel).value() == 2);
  REQUIRE(get(*channel).value() == 3);
}

// guarantee: drop-oldest
TEST_CASE("A put does not drop an unacked delivery") {
  auto channel = dropping(2);
  put(*channel, 1).value();
  Delivery taken = take(*channel).value();
  for (std::uint64_t i = 2; i < 6; ++i) put(*channel, i).value();
  taken.nack(patience()).value();
  REQUIRE(get(*channel).value() == 1);
}

// guarantee: drop-oldest
TEST_CASE("Messages in blocks are dropped to free bytes for a put") {
  auto arena = new_arena(4 << 20);
  auto channel = dropping(0, arena);
  for (std::uint64_t i = 0; i < 40; ++i) {
    channel->sending().wait_for_space(1 << 20, patience()).value();
    put(*channel, i, (1 << 20) / 8).value();
  }
  REQUIRE(channel->stats().dropped >= 36);
  REQUIRE(channel->size() >= 1);
}

// guarantee: drop-oldest
TEST_CASE("A put drops nothing if no receiver is left") {
  auto channel = dropping(1);
  put(*channel, 1).value();
  channel->membership().leave(End::kReceiving);
  REQUIRE(code_of(put(*channel, 2)) == Code::kClosed);
  REQUIRE(channel->dropped() == 0);
}

TEST_CASE("Waiting for acks does not wait for dropped messages") {
  auto channel = dropping(1);
  put(*channel, 1).value();
  put(*channel, 2).value();
  get(*channel).value();
  channel->acks().wait({}, patience()).value();
}

// guarantee: drop-oldest
TEST_CASE("Concurrent puts lose only messages counted as dropped") {
  auto channel = dropping(4);
  constexpr int kEach = 20'000;
  const auto sends = [&] {
    for (int i = 0; i < kEach; ++i) put(*channel, 1, 1, no_wait()).value();
  };
  std::uint64_t received = 0;
  std::thread first(sends), second(sends);
  std::thread receiver([&] {
    while (received + channel->stats().dropped < 2 * kEach) received += get(*channel, patience(10)).ok() ? 1 : 0;
  });
  first.join();
  second.join();
  receiver.join();
  REQUIRE(received + channel->stats().dropped == 2 * kEach);
  REQUIRE(channel->size() == 0);
}

TEST_CASE("A put drops nothing while a receiver has the end reserved") {
  auto channel = dropping(1);
  put(*channel, 1).value();
  Gate reserved;
  Child other([&] {
    channel->tasks().reserve(End::kReceiving, patience()).value();
    reserved.open();
    return pause() == -1;
  });
  reserved.wait();
  REQUIRE(code_of(put(*channel, 2, 1, no_wait())) == Code::kFull);
  other.kill_and_wait();
}
