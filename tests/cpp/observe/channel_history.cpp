// Values that need several snapshots: rates, ages, shares of time, the limiting end, and waits.
#include <string>

#include "platform/machine.h"
#include "support/catch2.h"
#include "support/channels.h"
#include "support/snapshots.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

ObservedChannel look_at(Observer& observer, Channel& channel) {
  for (const ObservedChannel& one : test::look_at(channel.arena()->uuid(), observer.look()).channels) {
    if (one.block == memory::pack(channel.block())) return one;
  }
  std::abort();
}
ObservedWait wait_of(const Arena& arena, int pid) {
  for (;;) {
    for (const ObservedParticipant& one : test::look_at(arena).participants) {
      if (one.pid == pid && !one.waits.empty()) return one.waits[0];
    }
  }
}

}  // namespace

TEST_CASE("Rates and message age come from consecutive snapshots") {
  const auto channel = new_channel(new_arena(), with_capacity(100));
  put(*channel, 0).value();
  Observer observer;
  const ObservedChannel first = look_at(observer, *channel);
  CHECK(first.put_per_s == 0);
  CHECK(first.oldest_seconds == 0);
  for (std::uint64_t number = 1; number < 50; ++number) put(*channel, number).value();
  const ObservedChannel second = look_at(observer, *channel);
  CHECK(second.put_per_s > 0);
  CHECK(second.received_per_s == 0);
  CHECK(second.oldest_seconds > 0);
  const ObservedChannel third = look_at(observer, *channel);
  CHECK(third.put_per_s == 0);
  CHECK(third.oldest_seconds > second.oldest_seconds);
  for (std::uint64_t number = 0; number < 50; ++number) get(*channel).value();
  const ObservedChannel last = look_at(observer, *channel);
  CHECK(last.received_per_s > 0);
  CHECK(last.oldest_seconds == 0);
}

TEST_CASE("The age is that of the oldest message still queued") {
  const auto channel = new_channel(new_arena(), with_capacity(100));
  Observer observer;
  for (std::uint64_t number = 0; number < 70; ++number) {  // more snapshots than the observer keeps
    put(*channel, number).value();
    if (number != 0) get(*channel).value();
    const ObservedChannel seen = look_at(observer, *channel);
    CHECK(seen.queued == 1);
    CHECK(seen.oldest_seconds == 0);  // it was put after the previous snapshot
  }
  CHECK(look_at(observer, *channel).oldest_seconds > 0);
}

TEST_CASE("Receivers limit full channels and senders limit empty ones") {
  const auto channel = new_channel(new_arena(), with_capacity(1));
  CHECK_FALSE(look_at(*channel->arena()).channels[0].limiting.has_value());
  put(*channel, 1).value();
  const auto full = look_at(*channel->arena()).channels[0].limiting;
  REQUIRE(full.has_value());
  CHECK(full->end == "receiver");
  get(*channel).value();
  Child child([&] { return get(*channel).ok(); });
  CHECK(wait_of(*channel->arena(), child.pid()).what == "message");
  const auto empty = look_at(*channel->arena()).channels[0].limiting;
  REQUIRE(empty.has_value());
  CHECK(empty->end == "sender");
  CHECK(empty->pids == std::vector<int>{process_id()});
  put(*channel, 2).value();
  CHECK(child.succeeded());
}

TEST_CASE("The limiting end is the one that the other waited for") {
  const auto channel = new_channel(new_arena(), with_capacity(1));
  put(*channel, 1).value();
  Child child([&] { return put(*channel, 2).ok(); });
  CHECK(wait_of(*channel->arena(), child.pid()).what == "space");
  Observer observer;
  CHECK(look_at(observer, *channel).full_share == 0);
  ObservedChannel seen = look_at(observer, *channel);
  while (seen.full_share < 0.5) seen = look_at(observer, *channel);
  CHECK(seen.full_share <= 1);
  CHECK(seen.empty_share == 0);
  REQUIRE(seen.limiting.has_value());
  CHECK(seen.limiting->end == "receiver");
  get(*channel).value();
  CHECK(child.succeeded());
  get(*channel).value();
}

TEST_CASE("A wait names the channel that the process sleeps on") {
  const auto arena = new_arena();
  const auto first = new_channel(arena), second = new_channel(arena);
  Child receiving([&] { return get(*second).ok(); });
  const ObservedWait wait = wait_of(*arena, receiving.pid());
  const ObservedArena seen = look_at(*arena);
  REQUIRE(wait.channel.has_value());
  CHECK(seen.channels[*wait.channel].block == memory::pack(second->block()));
  CHECK(wait.at == "channel " + std::to_string(*wait.channel));
  put(*second, 1).value();
  CHECK(receiving.succeeded());
}

TEST_CASE("A moved observer keeps its history") {
  Observer observer;
  {
    const auto channel = new_channel(new_arena(), with_capacity(10));
    look_at(observer, *channel);
    put(*channel, 1).value();
    Observer other = std::move(observer);
    CHECK(look_at(other, *channel).put_per_s > 0);
    observer = std::move(other);
    CHECK(look_at(observer, *channel).oldest_seconds > 0);
  }
  observer.look();
}
