// Messages that count towards a channel's capacity: all that can be received, in the ring or returned.
#include "support/catch2.h"
#include "support/channel_check.h"
#include "support/channels.h"
#include "support/survivors.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

std::vector<Delivery> take_all(Channel& channel) {
  std::vector<Delivery> deliveries;
  for (;;) {
    auto delivery = take(channel, no_wait());
    if (!delivery) return deliveries;
    deliveries.push_back(std::move(*delivery));
  }
}
void give_back(std::vector<Delivery> deliveries) {
  for (Delivery& delivery : deliveries) delivery.nack(patience()).value();
}
// Puts numbers from `from` on until the channel is full. Returns how many.
std::uint64_t fill_up(Channel& channel, std::uint64_t from) {
  std::uint64_t count = 0;
  while (put(channel, from + count, 1, no_wait()).ok()) ++count;
  return count;
}

}  // namespace

// guarantee: nack-over-capacity
TEST_CASE("Put reports full while nacked messages exceed the capacity") {
  auto channel = new_channel(new_arena(), with_capacity(8));
  REQUIRE(fill_up(*channel, 0) == 8);
  std::vector<Delivery> taken = take_all(*channel);
  REQUIRE(fill_up(*channel, 8) == 8);
  give_back(std::move(taken));
  REQUIRE(channel->size() == 16);
  REQUIRE(channel->stats().queued_bytes == 16 * 8);
  REQUIRE_FALSE(channel->sending().has_space());
  auto refused = put(*channel, 99, 1, no_wait());
  REQUIRE(code_of(refused) == Code::kFull);
  REQUIRE(refused.error().message.find("16 of at most 8 messages") != std::string::npos);
  REQUIRE(refused.error().message.find("8 of them messages that receivers took and returned") != std::string::npos);
  for (std::uint64_t i = 0; i < 8; ++i) REQUIRE(get(*channel, no_wait()).value() == i);
  REQUIRE_FALSE(channel->sending().has_space());
  REQUIRE(code_of(put(*channel, 99, 1, no_wait())) == Code::kFull);
  REQUIRE(get(*channel, no_wait()).value() == 8);
  REQUIRE(channel->sending().has_space());
  REQUIRE(put(*channel, 16, 1, no_wait()).ok());
  REQUIRE_FALSE(channel->sending().has_space());
  REQUIRE(channel::check(*channel->arena()) == "");
}

TEST_CASE("Nacked messages count even if the sender cached free slots") {
  auto channel = new_channel(new_arena(), with_capacity(8));
  for (std::uint64_t i = 0; i < 4; ++i) put(*channel, i).value();
  give_back(take_all(*channel));
  REQUIRE(fill_up(*channel, 4) == 4);
  REQUIRE(drain(*channel) == Numbers{0, 1, 2, 3, 4, 5, 6, 7});
  REQUIRE(fill_up(*channel, 8) == 8);
}

TEST_CASE("put_many stops when nacked messages use up the capacity") {
  auto channel = new_channel(new_arena(), with_capacity(8));
  for (std::uint64_t i = 0; i < 5; ++i) put(*channel, i).value();
  give_back(take_all(*channel));
  Message messages[8]{{*channel, 5}, {*channel, 6},  {*channel, 7},  {*channel, 8},
                      {*channel, 9}, {*channel, 10}, {*channel, 11}, {*channel, 12}};
  std::vector<Outgoing> batch;
  for (Message& message : messages) batch.push_back(std::move(message.out));
  auto went = channel->sending().put_many(batch, no_wait());
  REQUIRE(code_of(went) == Code::kFull);
  REQUIRE(went.error().completed == 3);
  REQUIRE(channel->size() == 8);
}

TEST_CASE("The bytes of nacked messages count against max_bytes") {
  ChannelOptions options = with_capacity(0);
  options.max_bytes = 100;
  auto channel = new_channel(new_arena(), options);
  put(*channel, 1, 6).value();
  std::vector<Delivery> taken = take_all(*channel);
  REQUIRE(channel->stats().queued_bytes == 0);
  put(*channel, 2, 6).value();
  give_back(std::move(taken));
  REQUIRE(channel->stats().queued_bytes == 96);
  REQUIRE(code_of(put(*channel, 3, 1, no_wait())) == Code::kFull);
  REQUIRE(get(*channel, no_wait()).value() == 1);
  REQUIRE(put(*channel, 3, 1, no_wait()).ok());
  REQUIRE(channel::check(*channel->arena()) == "");
}

TEST_CASE("Messages of a killed taker count towards the capacity again") {
  for (const std::size_t words : {1u, 700u}) {
    auto channel = new_channel(new_arena(), with_capacity(6));
    for (std::uint64_t i = 0; i < 4; ++i) put(*channel, i, words).value();
    Child taker([&] {
      std::vector<Delivery> taken = take_all(*channel);
      kill(getpid(), SIGKILL);
      return true;
    });
    REQUIRE(taker.was_killed());
    channel->arena()->participants().check(0);
    REQUIRE(channel->arena()->reconcile(patience()).ok());
    REQUIRE(channel->stats().queued_bytes == 4 * 8 * words);
    REQUIRE(fill_up(*channel, 4) == 2);
    REQUIRE(channel::check(*channel->arena()) == "");
    REQUIRE(drain(*channel) == Numbers{0, 1, 2, 3, 4, 5});
  }
}

TEST_CASE("A blocked put continues once nacked messages are received") {
  auto channel = new_channel(new_arena(), with_capacity(2));
  REQUIRE(fill_up(*channel, 0) == 2);
  std::vector<Delivery> taken = take_all(*channel);
  REQUIRE(fill_up(*channel, 2) == 2);
  give_back(std::move(taken));
  Child sender([&] { return put(*channel, 4).ok(); });
  for (std::uint64_t i = 0; i < 5; ++i) REQUIRE(get(*channel).value() == i);
  REQUIRE(sender.succeeded());
}

#if defined(SHMTREE_CRASH_POINTS)

// guarantee: nack-over-capacity
TEST_CASE("A kill in take or nack never overstates the free space") {
  for (std::int64_t n = 1;; ++n) {
    auto channel = new_channel(new_arena(), with_capacity(8));
    for (std::uint64_t i = 0; i < 4; ++i) put(*channel, i).value();
    give_back(take_all(*channel));
    const bool killed = killed_at_change(n, [&] {
      give_back(take_all(*channel));
      get_message(*channel, patience()).value();
    });
    INFO("killed before change " << n);
    const ChannelHeader& header = header_of(*channel);
    std::uint32_t returned = 0;
    for (std::uint64_t i = 0; i < channel::kFirstRecords; ++i) {
      returned += channel::state_of_record(record_of(*channel, i).state) == RecordState::kReturned;
    }
    REQUIRE(header.also_queued >= returned);
    survive_with(*channel, [](const Numbers& numbers) { return numbers.size() >= 3; });
    if (!killed) break;
  }
}

#endif
