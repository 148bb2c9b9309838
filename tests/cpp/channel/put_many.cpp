// Puts of several messages at once.
#include "support/catch2.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

TEST_CASE("put_many puts all messages in order if there is space") {
  auto channel = new_channel(new_arena(), with_capacity(0));
  std::vector<Outgoing> batch;
  std::vector<std::unique_ptr<Message>> messages;
  for (std::uint64_t i = 0; i < 300; ++i) {
    messages.push_back(std::make_unique<Message>(*channel, i, i % 7 == 0 ? 80 : 4));
    batch.push_back(std::move(messages.back()->out));
  }
  REQUIRE(channel->sending().put_many(batch, no_wait()).ok());
  for (std::uint64_t i = 0; i < 300; ++i) REQUIRE(get(*channel, no_wait()).value() == i);
}

TEST_CASE("put_many reports how many it put and consumes only those") {
  auto channel = new_channel(new_arena(), with_capacity(5));
  put(*channel, 100).value();
  std::vector<Outgoing> batch;
  std::vector<std::unique_ptr<Message>> messages;
  for (std::uint64_t i = 0; i < 9; ++i) {
    messages.push_back(std::make_unique<Message>(*channel, i, 300));
    batch.push_back(std::move(messages.back()->out));
  }
  auto went = channel->sending().put_many(batch, patience(5));
  REQUIRE(code_of(went) == Code::kFull);
  REQUIRE(went.error().completed == 4);
  for (std::size_t i = 0; i < 9; ++i) REQUIRE(batch[i].block.valid() == (i >= 4));
  REQUIRE(drain(*channel) == std::vector<std::uint64_t>{100, 0, 1, 2, 3});
}

TEST_CASE("put_many stops before a message that is too large") {
  ChannelOptions options;
  options.capacity = 0;
  options.max_bytes = 100;
  auto channel = new_channel(new_arena(), options);
  Message small(*channel, 1, 2), large(*channel, 2, 20), last(*channel, 3, 2);
  Outgoing batch[3]{std::move(small.out), std::move(large.out), std::move(last.out)};
  auto went = channel->sending().put_many(batch, patience(5));
  REQUIRE(code_of(went) == Code::kMessageTooLarge);
  REQUIRE(went.error().completed == 1);
}
