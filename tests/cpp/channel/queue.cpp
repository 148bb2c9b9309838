// Order, capacity, and timeouts.
#include <poll.h>

#include <map>
#include <thread>

#include "support/catch2.h"
#include "support/channels.h"
#include "support/versions.h"
#include "support/waits.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

// Puts 1, 2, ... until the channel is full. Returns how many were put.
std::uint64_t fill_up(Channel& channel, std::size_t words = 1) {
  std::uint64_t count = 0;
  while (put(channel, count + 1, words, no_wait()).ok()) ++count;
  return count;
}

struct Interrupting : WaitHooks {
  int asked = 0;
  void before_block() noexcept override {}
  void after_block() noexcept override {}
  bool interrupted() noexcept override { return ++asked > 0; }
};

// Opens the gate once this process has waited for longer than it waits for a stopped process.
struct Patient : WaitHooks {
  const Gate& go;
  const std::int64_t began = monotonic_ns();
  bool opened = false;
  explicit Patient(const Gate& gate) : go(gate) {}
  void before_block() noexcept override {}
  void after_block() noexcept override {}
  bool interrupted() noexcept override {
    if (!opened && monotonic_ns() - began > 100'000'000) {
      opened = true;
      go.open();
    }
    return false;
  }
};

}  // namespace

// guarantee: get-once-in-order
TEST_CASE("Concurrent processes lose nothing and keep the sender order") {
  constexpr std::uint64_t kEach = 3'000;
  auto arena = new_arena();
  auto channel = new_channel(arena, with_capacity(16));
  Child senders[3]{Child([&] {
                     for (std::uint64_t i = 0; i < kEach; ++i)
                       if (!put(*channel, 1u << 24 | i, i % 3 == 0 ? 200 : 2).ok()) return false;
                     return true;
                   }),
                   Child([&] {
                     for (std::uint64_t i = 0; i < kEach; ++i)
                       if (!put(*channel, 2u << 24 | i).ok()) return false;
                     return true;
                   }),
                   Child([&] {
                     for (std::uint64_t i = 0; i < kEach; ++i)
                       if (!put(*channel, 3u << 24 | i, 60).ok()) return false;
                     return true;
                   })};
  auto results = new_channel(arena, with_capacity(0));
  const auto receive = [&] {
    std::map<std::uint64_t, std::uint64_t> last;
    for (std::uint64_t count = 0;; ++count) {
      auto number = get(*channel, patience(60'000));
      if (!number || *number == 0) return put(*results, number ? count : kTorn).ok();
      if (*number == kTorn || (last.count(*number >> 24) != 0 && last[*number >> 24] >= *number))
        return put(*results, kTorn - 1).ok();
      last[*number >> 24] = *number;
    }
  };
  Child first(receive), second(receive);
  for (Child& sender : senders) REQUIRE(sender.succeeded());
  REQUIRE(put(*channel, 0).ok());
  REQUIRE(put(*channel, 0).ok());
  REQUIRE(get(*results, patience(60'000)).value() + get(*results, patience(60'000)).value() == 3 * kEach);
}

TEST_CASE("A channel of capacity n holds exactly n messages") {
  for (const std::uint64_t capacity : {1u, 2u, 3u, 7u, 8u, 9u, 63u, 1000u}) {
    auto channel = new_channel(new_arena(), with_capacity(capacity));
    REQUIRE(fill_up(*channel) == capacity);
    REQUIRE(channel->size() == capacity);
    REQUIRE_FALSE(channel->sending().has_space());
    REQUIRE(get(*channel).value() == 1);
    REQUIRE(channel->sending().has_space());
    REQUIRE(put(*channel, 9, 1, no_wait()).ok());
    REQUIRE(code_of(put(*channel, 10, 1, no_wait())) == Code::kFull);
  }
}

TEST_CASE("A ring wraps and grows at any position without a loss") {
  auto channel = new_channel(new_arena(), with_capacity(0));
  std::uint64_t in = 0, out = 0;
  for (std::uint64_t round = 1; round < 60; ++round) {
    for (std::uint64_t i = 0; i < round % 23 + round; ++i) REQUIRE(put(*channel, ++in, i % 5 == 0 ? 61 : 3).ok());
    for (std::uint64_t i = 0; i < round % 17 + round / 2 && out < in; ++i) REQUIRE(get(*channel).value() == ++out);
  }
  while (out < in) REQUIRE(get(*channel).value() == ++out);
  REQUIRE(channel->size() == 0);
}

TEST_CASE("An unlimited channel frees the memory of received messages") {
  auto arena = new_arena();
  auto channel = new_channel(arena, with_capacity(0));
  const std::uint64_t before = used_bytes(*arena);
  for (std::uint64_t i = 0; i < 4'000; ++i) REQUIRE(put(*channel, i).ok());
  REQUIRE(used_bytes(*arena) > 2 * kMiB);
  REQUIRE(drain(*channel).size() == 4'000);
  // The last segment stays for later messages. A segment takes at most a sixteenth of the budget.
  REQUIRE(used_bytes(*arena) <= before + arena->pool().max_bytes() / 16 + 8192);
  REQUIRE(check_arena(*arena) == "");
}

TEST_CASE("Frames up to the slot size are inline and others in blocks") {
  auto arena = new_arena();
  const auto [capacity, inline_words] =
      GENERATE(table<std::uint64_t, std::size_t>({{8, 156}, {1'024, 156}, {1'025, 60}, {0, 60}}));
  auto channel = new_channel(arena, with_capacity(capacity));
  REQUIRE(channel->inline_bytes() == inline_words * 8);
  const auto is_whole = [inline_words = inline_words](Incoming& message, std::size_t words) {
    return message.bytes() == words * 8 && message.in_block() == (words > inline_words) &&
           number_in(message.frame()) == words;
  };
  for (const std::size_t words : {1u, 2u, 59u, 60u, 61u, 155u, 156u, 157u, 512u, 513u, 100'000u}) {
    REQUIRE(put(*channel, words, words).ok());
    REQUIRE(take(*channel, no_wait()).value().nack(no_wait()).ok());
    auto taken = take(*channel, no_wait()).value();
    REQUIRE(is_whole(taken.message(), words));
    REQUIRE(taken.nack(no_wait()).ok());
    auto message = get_message(*channel, no_wait()).value();
    REQUIRE(is_whole(message, words));
  }
  REQUIRE(check_arena(*arena) == "");
}

TEST_CASE("put accepts an empty frame and refuses a long inline frame") {
  auto channel = new_channel(new_arena());
  Outgoing empty;
  REQUIRE(channel->sending().put(empty, no_wait()).ok());
  REQUIRE(get_message(*channel, no_wait()).value().frame().empty());
  const std::vector<std::byte> bytes(channel->inline_bytes() + 1);
  Outgoing long_one;
  long_one.inline_frame = bytes;
  REQUIRE(code_of(channel->sending().put(long_one, no_wait())) == Code::kInvalid);
}

TEST_CASE("A received message outlives moves and its channel") {
  auto arena = new_arena();
  Incoming inline_one, block_one;
  {
    auto channel = new_channel(arena);
    put(*channel, 5, 60).value();
    put(*channel, 6, 600).value();
    inline_one = get_message(*channel, no_wait()).value();
    Incoming moved = get_message(*channel, no_wait()).value();
    block_one = std::move(moved);
  }
  REQUIRE(number_in(inline_one.frame()) == 5);
  REQUIRE(number_in(block_one.frame()) == 6);
  Lease lease = block_one.adopt().value();
  block_one.drop();
  REQUIRE(number_in({lease.data(), 600 * 8}) == 6);
  REQUIRE(code_of(block_one.adopt()) == Code::kInvalid);
}

TEST_CASE("Calls with an immediate deadline return without a wait") {
  auto channel = new_channel(new_arena(), with_capacity(1));
  CountedWaits waits;
  const WaitContext at_once = waits.until(Deadline::immediate());
  REQUIRE(code_of(get(*channel, at_once)) == Code::kEmpty);
  REQUIRE(code_of(take(*channel, at_once)) == Code::kEmpty);
  put(*channel, 1).value();
  REQUIRE(code_of(put(*channel, 2, 1, at_once)) == Code::kFull);
  REQUIRE(code_of(channel->acks().wait(0, at_once)) == Code::kTimeout);
  REQUIRE(waits.blocks == 0);
}

// guarantee: timeouts
TEST_CASE("Calls with a deadline return within 50 ms after it") {
  auto channel = new_channel(new_arena(), with_capacity(1));
  const auto in_time = [](auto act) {
    const std::int64_t ms = shortest_ms(80, act);
    return ms >= 30 && ms < 80;
  };
  REQUIRE(in_time([&] { REQUIRE(code_of(get(*channel, patience(30))) == Code::kEmpty); }));
  REQUIRE(in_time([&] { REQUIRE(code_of(take(*channel, patience(30))) == Code::kEmpty); }));
  put(*channel, 1).value();
  REQUIRE(in_time([&] { REQUIRE(code_of(put(*channel, 2, 1, patience(30))) == Code::kFull); }));
  REQUIRE(in_time([&] { REQUIRE(code_of(channel->acks().wait({}, patience(30))) == Code::kTimeout); }));
}

TEST_CASE("The interrupt hook ends every kind of waiting") {
  auto channel = new_channel(new_arena(), with_capacity(1));
  Interrupting hooks;
  const WaitContext wait{Deadline::never(), &hooks};
  REQUIRE(code_of(get_message(*channel, wait)) == Code::kInterrupted);
  REQUIRE(code_of(channel->take(wait)) == Code::kInterrupted);
  put(*channel, 1).value();
  REQUIRE(code_of(put(*channel, 2, 1, wait)) == Code::kInterrupted);
  REQUIRE(code_of(channel->sending().wait_for_space(1, wait)) == Code::kInterrupted);
  REQUIRE(code_of(channel->acks().wait({}, wait)) == Code::kInterrupted);
  REQUIRE(get(*channel).value() == 1);
}

TEST_CASE("max_bytes bounds the bytes that are queued") {
  ChannelOptions options;
  options.capacity = 0;
  options.max_bytes = 1'000;
  auto channel = new_channel(new_arena(), options);
  REQUIRE(fill_up(*channel, 40) == 3);
  REQUIRE(channel->sending().has_space());  // for a message of 40 bytes
  REQUIRE(put(*channel, 4, 5, no_wait()).ok());
  REQUIRE_FALSE(channel->sending().has_space());
  REQUIRE(get(*channel).value() == 1);
  REQUIRE(put(*channel, 5, 40, no_wait()).ok());
}

TEST_CASE("An oversized message is refused even if the channel is full") {
  ChannelOptions options;
  options.capacity = 1;
  options.max_bytes = 1'000;
  auto arena = new_arena();
  auto channel = new_channel(arena, options);
  auto plain = new_channel(arena, with_capacity(1));
  put(*channel, 1).value();
  put(*plain, 1).value();
  REQUIRE(code_of(channel->sending().wait_for_space(1'001, patience())) == Code::kMessageTooLarge);
  REQUIRE(code_of(put(*channel, 2, 126)) == Code::kMessageTooLarge);
  REQUIRE(code_of(plain->sending().wait_for_space(arena->pool().max_bytes() + 1, patience())) ==
          Code::kMessageTooLarge);
}

TEST_CASE("A channel leaves other channels as many bytes as it queues") {
  auto arena = new_arena(8 * kMiB);
  auto channel = new_channel(arena, with_capacity(0));
  const std::size_t words = kMiB / 8;
  std::uint64_t queued = 0;
  for (;; ++queued) {
    if (!channel->sending().wait_for_space(words * 8, no_wait()).ok()) break;
    REQUIRE(put(*channel, queued, words, no_wait()).ok());
    REQUIRE((queued + 1) * kMiB <= arena->pool().free_bytes());
  }
  REQUIRE(queued >= 3);
  REQUIRE(put(*channel, 99, 1, no_wait()).ok());  // small messages are still accepted
  auto other = new_channel(arena);
  REQUIRE(put(*other, 1, words, no_wait()).ok());
}

TEST_CASE("An empty channel accepts a message of almost the arena size") {
  auto arena = new_arena(8 * kMiB);
  auto channel = new_channel(arena);
  const std::size_t words = 7 * kMiB / 8;
  REQUIRE(channel->sending().wait_for_space(words * 8, no_wait()).ok());
  REQUIRE(put(*channel, 1, words, no_wait()).ok());
  REQUIRE(get(*channel).value() == 1);
}

TEST_CASE("A thousand channels in one arena free all their memory") {
  auto arena = new_arena(64 * kMiB);
  {
    std::vector<std::shared_ptr<Channel>> channels;
    for (std::uint64_t i = 0; i < 1'000; ++i) {
      channels.push_back(new_channel(arena));
      put(*channels.back(), i, i % 2 == 0 ? 1 : 300).value();
    }
    for (std::uint64_t i = 0; i < 1'000; ++i) REQUIRE(get(*channels[i]).value() == i);
  }
  arena->participants().check(0);
  REQUIRE(arena->reconcile(patience()).ok());
  REQUIRE(used_bytes(*arena) == 0);
  REQUIRE(check_arena(*arena) == "");
}

TEST_CASE("An unattached channel is reclaimed with its messages") {
  auto arena = new_arena();
  {
    auto channel = new_channel(arena, with_capacity(0));
    for (std::uint64_t i = 0; i < 50; ++i) put(*channel, i, i % 2 == 0 ? 1 : 5'000).value();
    Delivery delivery = take(*channel).value();
  }
  arena->participants().check(0);
  REQUIRE(arena->reconcile(patience()).ok());
  REQUIRE(used_bytes(*arena) == 0);
  REQUIRE(check_arena(*arena) == "");
}

TEST_CASE("open accepts only the current block of a channel") {
  auto arena = new_arena();
  auto channel = new_channel(arena);
  REQUIRE(Channel::open(arena, channel->block(), patience()).value() == channel);
  const Lease array = new_lease(*arena);
  REQUIRE(code_of(Channel::open(arena, array.ref(), patience())) == Code::kIncompatible);
  BlockRef gone = channel->block();
  gone.generation += 1;
  REQUIRE(code_of(Channel::open(arena, gone, patience())) == Code::kNotFound);
  REQUIRE(code_of(Channel::open(arena, BlockRef{BlockId{~std::uint64_t{0}}, 1}, patience())) == Code::kIncompatible);
}

TEST_CASE("open reports both layout versions of a channel") {
  auto arena = new_arena();
  auto channel = new_channel(arena);
  const BlockRef block = channel->block();
  const Lease kept = arena->hold_existing(block, BlockKind::kChannel, patience()).value();
  header_of(*channel).version = 77;
  channel.reset();
  const auto opened = Channel::open(arena, block, patience());
  REQUIRE(names_versions(opened.error(), 77, channel::kChannelVersion));
}

TEST_CASE("open refuses a channel with an unknown slot size") {
  auto arena = new_arena();
  auto channel = new_channel(arena);
  const BlockRef block = channel->block();
  const Lease kept = arena->hold_existing(block, BlockKind::kChannel, patience()).value();
  header_of(*channel).slot_bytes = 640;
  channel.reset();
  const auto opened = Channel::open(arena, block, patience());
  REQUIRE(code_of(opened) == Code::kIncompatible);
  REQUIRE(opened.error().message.find("640") != std::string::npos);
}

TEST_CASE("A put that needs a segment waits for the arena lock") {
  auto channel = new_channel(new_arena(), with_capacity(0));
  for (std::uint64_t i = 0; i < channel::kFirstSlots; ++i) put(*channel, i).value();
  Gate locked;
  Child owner([&] {
    auto& word = channel->arena()->header().arena_lock;
    channel->arena()->lock(word, patience()).value();
    locked.open();
    poll(nullptr, 0, 150);  // longer than a call waits for a lock if it waits for nothing else
    channel->arena()->unlock(word);
    return true;
  });
  locked.wait();
  REQUIRE(put(*channel, channel::kFirstSlots).ok());
  REQUIRE(owner.succeeded());
}

TEST_CASE("Non-blocking put and get wait for a running lock owner") {
  for (const bool senders : {true, false}) {
    auto channel = new_channel(new_arena(), with_capacity(2));
    put(*channel, 1).value();
    auto& word = senders ? header_of(*channel).senders_lock : header_of(*channel).receivers_lock;
    Gate locked, go;
    Child owner([&] {
      channel->arena()->lock(word, patience()).value();
      locked.open();
      go.wait();
      channel->arena()->unlock(word);
      return true;
    });
    locked.wait();
    Patient hooks(go);
    const WaitContext at_once{Deadline::immediate(), &hooks};
    REQUIRE((senders ? put(*channel, 2, 1, at_once).ok() : get(*channel, at_once).ok()));
    REQUIRE(hooks.opened);
    REQUIRE(owner.succeeded());
  }
}
