// A limit on the unacked messages of all processes together.
#include "support/catch2.h"
#include "support/channel_check.h"
#include "support/channels.h"
#include "support/waits.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

std::shared_ptr<Channel> channel_of(std::uint64_t count, std::uint64_t max_unacked) {
  ChannelOptions options = with_capacity(0);
  options.max_unacked = max_unacked;
  auto channel = new_channel(new_arena(), options);
  for (std::uint64_t i = 0; i < count; ++i) put(*channel, i).value();
  return channel;
}

}  // namespace

// guarantee: max-unacked
TEST_CASE("take stops at the unacked limit and reports the numbers") {
  auto channel = channel_of(5, 2);
  Delivery first = take(*channel, no_wait()).value();
  Delivery second = take(*channel, no_wait()).value();
  for (const auto& wait : {no_wait(), patience(20)}) {
    auto refused = take(*channel, wait);
    REQUIRE(code_of(refused) == Code::kEmpty);
    REQUIRE(refused.error().message.find("2 of at most 2 messages are unacked") != std::string::npos);
    REQUIRE(refused.error().message.find("3 more are queued") != std::string::npos);
  }
  REQUIRE(channel->stats().taken == 2);
  REQUIRE(get(*channel, no_wait()).value() == 2);  // get() leaves nothing to ack
  REQUIRE(first.ack(patience()).ok());
  Delivery third = take(*channel, no_wait()).value();
  REQUIRE(number_in(third) == 3);
  REQUIRE(channel::check(*channel->arena()) == "");
}

TEST_CASE("A nacked and retaken message counts once") {
  auto channel = channel_of(3, 2);
  Delivery first = take(*channel, no_wait()).value();
  Delivery second = take(*channel, no_wait()).value();
  REQUIRE(first.nack(patience()).ok());
  Delivery again = take(*channel, no_wait()).value();
  REQUIRE(number_in(again) == 0);
  REQUIRE(code_of(take(*channel, no_wait())) == Code::kEmpty);
  REQUIRE(second.ack(patience()).ok());
  REQUIRE(take(*channel, no_wait()).ok());
}

TEST_CASE("Without a limit unacked messages may exceed the capacity") {
  auto channel = new_channel(new_arena(), with_capacity(2));
  std::vector<Delivery> taken;
  for (std::uint64_t i = 0; i < 10; ++i) {
    put(*channel, i, 1, no_wait()).value();
    taken.push_back(take(*channel, no_wait()).value());
  }
  REQUIRE(channel->stats().taken == 10);
}

// guarantee: max-unacked
TEST_CASE("A blocked take continues when another process acks or dies") {
  enum class Doing { kAck, kNack, kDie };
  for (const Doing doing : {Doing::kAck, Doing::kNack, Doing::kDie}) {
    auto channel = channel_of(2, 1);
    Gate taken, go;
    Child other([&] {
      Delivery delivery = take(*channel).value();
      taken.open();
      go.wait();
      if (doing == Doing::kDie) kill(getpid(), SIGKILL);
      return (doing == Doing::kAck ? delivery.ack(patience()) : delivery.nack(patience())).ok();
    });
    taken.wait();
    REQUIRE(code_of(take(*channel, no_wait())) == Code::kEmpty);
    go.open();
    Delivery delivery = take(*channel).value();
    REQUIRE(number_in(delivery) == (doing == Doing::kAck ? 1 : 0));
    REQUIRE((doing == Doing::kDie ? other.was_killed() : other.succeeded()));
  }
}

// guarantee: fork-in-a-call
TEST_CASE("A child forked during a take owns the delivery it takes") {
  auto channel = channel_of(2, 1);
  Delivery first = take(*channel).value();
  ForkingWaits waits;
  auto second = take(*channel, waits.until(patience().deadline));
  if (waits.in_child()) _exit(second && second->ack(patience()).ok() ? 0 : 1);
  REQUIRE(code_of(second) == Code::kInterrupted);
  REQUIRE(first.ack(patience()).ok());
  CHECK(waits.child_succeeded());
  CHECK(channel->stats().taken == 0);
  CHECK(channel->size() == 0);
}

TEST_CASE("A blocked take sees no end of stream while messages remain") {
  auto channel = channel_of(2, 1);
  Delivery first = take(*channel).value();
  channel->membership().leave(End::kSending);
  REQUIRE(code_of(take(*channel, patience(20))) == Code::kEmpty);
  REQUIRE(first.ack(patience()).ok());
  REQUIRE(take(*channel).value().ack(patience()).ok());
  REQUIRE(code_of(take(*channel)) == Code::kClosed);
}

TEST_CASE("A take at its limit passes its wake-up on to a get") {
  auto channel = channel_of(1, 1);
  Delivery first = take(*channel).value();
  Child taker([&] { return code_of(take(*channel, patience(60'000))) == Code::kClosed; });
  Child getter([&] { return get(*channel, patience(60'000)).value() == 7; });
  REQUIRE(put(*channel, 7).ok());
  REQUIRE(getter.succeeded());
  REQUIRE(first.ack(patience()).ok());
  channel->membership().leave(End::kSending);
  REQUIRE(taker.succeeded());
}
