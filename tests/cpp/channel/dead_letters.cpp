// Delivery attempts of a message, and rejected messages, which have reached the maximum.
#include <functional>

#include "support/catch2.h"
#include "support/channel_check.h"
#include "support/channels.h"
#include "support/survivors.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

ChannelOptions with_attempts(std::uint64_t max_attempts) {
  ChannelOptions options = unlimited();
  options.max_attempts = max_attempts;
  return options;
}
std::shared_ptr<Channel> channel_of(std::uint64_t count, std::uint64_t max_attempts, std::size_t words = 1) {
  auto channel = new_channel(new_arena(), with_attempts(max_attempts));
  putting(0, count, words)(*channel);
  return channel;
}
void give_back_one(Channel& channel) {
  take(channel, no_wait()).value().nack(patience()).value();
}
// Lets `times` receivers, one after the other, run out of memory for the next message.
void fail_to_build(Channel& channel, int times) {
  for (int i = 0; i < times; ++i) {
    auto place = std::make_unique<channel::Received>();
    REQUIRE(channel.receiving().get(place->message, no_wait()).ok());
    place->message.set_not_built();
    channel.returns().give_back(std::move(place));
  }
}
// Runs a process that takes a message and is killed. Then detects the death.
void take_and_die(Channel& channel) {
  Child taker([&] {
    Delivery delivery = take(channel).value();
    kill(getpid(), SIGKILL);
    return true;
  });
  REQUIRE(taker.was_killed());
  channel.arena()->participants().check(0);
  REQUIRE(channel.arena()->reconcile(patience()).ok());
}
std::vector<Delivery> dead_letters(Channel& channel) {
  return channel.dead_letters(patience()).value();
}
Numbers numbers_of(std::vector<Delivery> deliveries) {
  Numbers numbers;
  for (Delivery& delivery : deliveries) numbers.push_back(number_in(delivery));
  return numbers;
}

}  // namespace

TEST_CASE("A delivery counts the attempts of its message") {
  auto channel = channel_of(1, 0);
  for (std::uint32_t attempt = 1; attempt <= 3; ++attempt) {
    Delivery delivery = take(*channel, no_wait()).value();
    REQUIRE(delivery.message().attempts() == attempt);
    REQUIRE(delivery.message().redelivered() == (attempt > 1));
    REQUIRE(delivery.nack(patience()).ok());
  }
  take_and_die(*channel);
  REQUIRE(take(*channel).value().message().attempts() == 5);
  REQUIRE(get_message(*channel, no_wait()).value().attempts() == 6);
}

TEST_CASE("A message nacked max_attempts times is not delivered again") {
  for (const std::size_t words : {1u, 700u}) {
    auto channel = channel_of(2, 2, words);
    give_back_one(*channel);
    REQUIRE(channel->stats().dead_letters == 0);
    give_back_one(*channel);
    REQUIRE(channel->stats().dead_letters == 1);
    REQUIRE(channel->stats().returned == 0);
    REQUIRE(channel->stats().queued_bytes == 8 * words);
    REQUIRE(channel->size() == 1);
    REQUIRE(channel::check(*channel->arena()) == "");
    REQUIRE(get(*channel, no_wait()).value() == 1);
    REQUIRE(code_of(get(*channel, no_wait())) == Code::kEmpty);
    REQUIRE(code_of(take(*channel, no_wait())) == Code::kEmpty);
    REQUIRE(numbers_of(dead_letters(*channel)) == Numbers{0});
  }
}

TEST_CASE("A message not decoded in max_attempts attempts is rejected") {
  auto channel = channel_of(2, 2);
  for (std::uint32_t attempt = 1; attempt <= 2; ++attempt) {
    auto place = std::make_unique<channel::Received>();
    REQUIRE(channel->receiving().get(place->message, no_wait()).ok());
    REQUIRE(place->message.attempts() == attempt);
    channel->returns().give_back(std::move(place));
  }
  REQUIRE(get(*channel, no_wait()).value() == 1);
  REQUIRE(numbers_of(dead_letters(*channel)) == Numbers{0});
  REQUIRE(channel::check(*channel->arena()) == "");
}

TEST_CASE("Eight failed builds in a row reject a message") {
  auto channel = channel_of(2, 0);
  for (int i = 0; i < 12; ++i) give_back_one(*channel);
  fail_to_build(*channel, 7);
  {
    Delivery delivery = take(*channel, no_wait()).value();
    delivery.message().set_built();
    REQUIRE(delivery.nack(patience()).ok());
  }
  fail_to_build(*channel, 6);
  take_and_die(*channel);  // the death does not change the count of failed builds
  REQUIRE(channel->stats().dead_letters == 0);
  for (int i = 0; i < 2; ++i) {
    Delivery delivery = take(*channel, no_wait()).value();
    REQUIRE(number_in(delivery) == 0);
    delivery.message().set_not_built();
    REQUIRE(delivery.nack(patience()).ok());
  }
  REQUIRE(channel->stats().dead_letters == 1);
  REQUIRE(get(*channel, no_wait()).value() == 1);
  REQUIRE(channel::check(*channel->arena()) == "");
}

TEST_CASE("requeue resets the count of failed builds") {
  auto channel = channel_of(1, 0);
  fail_to_build(*channel, 8);
  auto given_up = dead_letters(*channel);
  REQUIRE(given_up.size() == 1);
  REQUIRE(given_up[0].requeue(patience()).ok());
  fail_to_build(*channel, 7);
  REQUIRE(channel->stats().dead_letters == 0);
  fail_to_build(*channel, 1);
  REQUIRE(numbers_of(dead_letters(*channel)) == Numbers{0});
}

// guarantee: attempts-and-dead-letters
TEST_CASE("A message is rejected after max_attempts takers have died") {
  auto channel = channel_of(2, 2);
  take_and_die(*channel);
  take_and_die(*channel);
  Delivery delivery = take(*channel).value();
  REQUIRE(number_in(delivery) == 1);
  REQUIRE(delivery.message().attempts() == 1);
  auto given_up = dead_letters(*channel);
  REQUIRE(given_up.size() == 1);
  REQUIRE(number_in(given_up[0]) == 0);
  REQUIRE(given_up[0].message().attempts() == 2);
  REQUIRE(channel::check(*channel->arena()) == "");
}

TEST_CASE("dead_letters() finds the messages of killed takers at once") {
  auto channel = channel_of(3, 1);
  Child taker([&] {
    Delivery first = take(*channel).value(), second = take(*channel).value(), third = take(*channel).value();
    kill(getpid(), SIGKILL);
    return true;
  });
  REQUIRE(taker.was_killed());
  REQUIRE(numbers_of(dead_letters(*channel)) == Numbers{0, 1, 2});
}

TEST_CASE("A dead letter is freed by ack and stays after a nack") {
  auto channel = channel_of(0, 1);
  { dead_letters(*channel); }
  putting(0, 1, 700)(*channel);
  give_back_one(*channel);
  const std::uint64_t with_it = used_bytes(*channel->arena());
  { auto dropped = dead_letters(*channel); }
  { dead_letters(*channel)[0].nack(patience()).value(); }
  REQUIRE(used_bytes(*channel->arena()) == with_it);
  auto found = dead_letters(*channel);
  REQUIRE(dead_letters(*channel).empty());  // a delivery of this process has it
  REQUIRE(channel->stats().dead_letters == 1);
  REQUIRE(found[0].ack(patience()).ok());
  found.clear();
  REQUIRE(channel->stats().dead_letters == 0);
  REQUIRE(used_bytes(*channel->arena()) < with_it);
  REQUIRE(dead_letters(*channel).empty());
  REQUIRE(channel::check(*channel->arena()) == "");
}

TEST_CASE("Requeue resets the attempts of a message") {
  auto channel = channel_of(2, 1);
  give_back_one(*channel);
  { dead_letters(*channel)[0].requeue(patience()).value(); }
  REQUIRE(channel->stats().dead_letters == 0);
  REQUIRE(channel->size() == 2);
  Delivery delivery = take(*channel, no_wait()).value();
  REQUIRE(number_in(delivery) == 0);
  REQUIRE(delivery.message().attempts() == 1);
  REQUIRE(delivery.requeue(patience()).ok());  // a requeue is no attempt either
  REQUIRE(channel->size() == 2);
  REQUIRE(channel->stats().dead_letters == 0);
  REQUIRE(channel::check(*channel->arena()) == "");
}

TEST_CASE("Hundreds of dead letters are listed in order") {
  constexpr std::uint64_t kCount = 300;
  auto channel = channel_of(kCount, 1, 61);
  {
    std::vector<Delivery> taken;
    for (std::uint64_t i = 0; i < kCount; ++i) taken.push_back(take(*channel).value());
    for (std::uint64_t i = 0; i < kCount; ++i) taken[(i * 7) % kCount].nack(patience()).value();
  }
  Numbers all;
  for (std::uint64_t i = 0; i < kCount; ++i) all.push_back(i);
  REQUIRE(numbers_of(dead_letters(*channel)) == all);
  REQUIRE(channel::check(*channel->arena()) == "");
}

TEST_CASE("Dead letters stay rejected if the process reading them dies") {
  auto channel = channel_of(1, 1);
  give_back_one(*channel);
  Child supervisor([&] {
    auto found = dead_letters(*channel);
    kill(getpid(), SIGKILL);
    return found.empty();
  });
  REQUIRE(supervisor.was_killed());
  REQUIRE(numbers_of(dead_letters(*channel)) == Numbers{0});
  REQUIRE(channel::check(*channel->arena()) == "");
}

TEST_CASE("Waiting for acks covers requeued but not rejected messages") {
  auto channel = channel_of(2, 1);
  REQUIRE(get(*channel).value() == 0);  // now this process counts as a receiver too
  Gate taken;
  Child taker([&] {
    Delivery delivery = take(*channel).value();
    taken.open();
    return delivery.nack(patience()).ok();
  });
  taken.wait();
  REQUIRE(channel->acks().wait({}, patience()).ok());
  REQUIRE(channel->acks().wait(1, patience()).ok());
  REQUIRE(taker.succeeded());
  REQUIRE(channel->acks().pending() == 0);
  { dead_letters(*channel)[0].requeue(patience()).value(); }
  REQUIRE(channel->acks().pending() == 1);
  REQUIRE(code_of(channel->acks().wait(1, no_wait())) == Code::kTimeout);
}

TEST_CASE("A stream with only dead letters left is over") {
  auto channel = channel_of(1, 1);
  Gate taken, go;
  Child taker([&] {
    Delivery delivery = take(*channel).value();
    taken.open();
    go.wait();
    return delivery.nack(patience()).ok();
  });
  taken.wait();
  channel->membership().leave(End::kSending);
  go.open();
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
  REQUIRE(taker.succeeded());
  REQUIRE(numbers_of(dead_letters(*channel)) == Numbers{0});
}

TEST_CASE("create refuses max_attempts above 32 bits") {
  auto made = Channel::create(new_arena(), with_attempts(std::uint64_t{1} << 32));
  REQUIRE(code_of(made) == Code::kInvalid);
  REQUIRE(made.error().message == "max_attempts is 4294967296; it must be at most 4294967295");
}

#if defined(SHMTREE_CRASH_POINTS)

namespace {

// Kills a process before each store of `act`. Each message must then be in the channel or rejected, exactly once, and
// the arena must be consistent.
void kill_at_every_change(const std::function<void(Channel&)>& prepare, const std::function<void(Channel&)>& act,
                          const std::function<bool(const Numbers& left, const Numbers& given_up)>& is_right) {
  std::int64_t n = 1;
  for (bool killed = true; killed; ++n) {
    REQUIRE(n < 1'000);
    auto channel = new_channel(new_arena(), with_attempts(2));
    prepare(*channel);
    killed = killed_at_change(n, [&] { act(*channel); });
    INFO("killed before change " << n);
    survive(*channel, [&] {
      Numbers left = drain(*channel);
      REQUIRE(left.back() == kSurvivors);
      left.pop_back();
      Numbers given_up;
      for (Delivery& delivery : dead_letters(*channel)) {
        given_up.push_back(number_in(delivery));
        REQUIRE(delivery.message().attempts() == 2);
        delivery.ack(patience()).value();
      }
      REQUIRE(is_right(left, given_up));
    });
    REQUIRE(channel->stats().dead_letters == 0);
  }
  REQUIRE(n > 5);
}

}  // namespace

// guarantee: attempts-and-dead-letters
TEST_CASE("A kill in the last attempt leaves the message or rejects it") {
  for (const std::size_t words : {4u, 700u}) {
    const auto once_taken = [words](Channel& channel) {
      putting(0, 2, words)(channel);
      give_back_one(channel);
    };
    const auto is_right = [](const Numbers& left, const Numbers& given_up) {
      return (left == Numbers{0, 1} && given_up.empty()) || (left == Numbers{1} && given_up == Numbers{0});
    };
    kill_at_every_change(
        once_taken, [](Channel& channel) { give_back_one(channel); }, is_right);
  }
}

TEST_CASE("Acking or requeueing a dead letter is atomic under kills") {
  for (const std::size_t words : {4u, 700u}) {
    const auto rejected_one = [words](Channel& channel) {
      putting(0, 2, words)(channel);
      give_back_one(channel);
      give_back_one(channel);
    };
    const auto look = [](Channel& channel) { dead_letters(channel); };
    kill_at_every_change(rejected_one, look, [](const Numbers& left, const Numbers& given_up) {
      return left == Numbers{1} && given_up == Numbers{0};
    });
    const auto drop = [](Channel& channel) { dead_letters(channel)[0].ack(patience()).value(); };
    kill_at_every_change(rejected_one, drop, [](const Numbers& left, const Numbers& given_up) {
      return left == Numbers{1} && (given_up.empty() || given_up == Numbers{0});
    });
    const auto requeue = [](Channel& channel) { dead_letters(channel)[0].requeue(patience()).value(); };
    kill_at_every_change(rejected_one, requeue, [](const Numbers& left, const Numbers& given_up) {
      return (left == Numbers{1} && given_up == Numbers{0}) || (left == Numbers{0, 1} && given_up.empty());
    });
  }
}

TEST_CASE("A killed reconcile leaves rejections to the next one") {
  for (std::int64_t n = 1;; ++n) {
    auto channel = channel_of(3, 1);
    Child taker([&] {
      Delivery first = take(*channel).value(), second = take(*channel).value();
      kill(getpid(), SIGKILL);
      return true;
    });
    REQUIRE(taker.was_killed());
    const bool killed = killed_at_change(n, [&] {
      channel->arena()->participants().check(0);
      channel->arena()->reconcile(patience()).value();
    });
    INFO("killed before change " << n);
    REQUIRE(numbers_of(dead_letters(*channel)) == Numbers{0, 1});
    REQUIRE(drain(*channel) == Numbers{2});
    REQUIRE(channel::check(*channel->arena()) == "");
    if (!killed) break;
  }
}

#endif
