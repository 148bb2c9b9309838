// An observer's view of channels and of the messages in them.
#include "support/channels.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "platform/machine.h"
#include "support/catch2.h"
#include "support/snapshots.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

ObservedChannel look_at(Channel& channel) {
  for (const ObservedChannel& info : test::look_at(*channel.arena()).channels) {
    if (info.block == memory::pack(channel.block())) return info;
  }
  std::abort();
}
std::vector<observer::MessageInfo> queued_in(Channel& channel, std::size_t most = 100) {
  return observer::snapshot_queue(channel.arena()->uuid(), memory::pack(channel.block()), most, kMiB).value();
}

}  // namespace

TEST_CASE("Observed counts equal those of the channel") {
  const auto channel = new_channel(new_arena(), with_capacity(5));
  for (std::uint64_t number = 0; number < 4; ++number) put(*channel, number, number == 3 ? 1000 : 4).value();
  get(*channel).value();
  const Delivery taken = take(*channel).value();
  const ObservedChannel seen = look_at(*channel);
  const channel::ChannelStats stats = channel->stats();
  CHECK(seen.consistent);
  CHECK(seen.put == 4);
  CHECK(seen.put == stats.put);
  CHECK(seen.received == stats.received);
  CHECK(seen.queued == 2);
  CHECK(seen.queued == stats.queued);
  CHECK(seen.queued_bytes == stats.queued_bytes);
  CHECK(seen.taken == 1);
  CHECK(seen.taken == stats.taken);
  CHECK(seen.returned == stats.returned);
  CHECK(seen.dead_letters == stats.dead_letters);
  CHECK(seen.unfinished == stats.unfinished);
  CHECK(seen.capacity == 5);
  CHECK_FALSE(seen.senders.locked_by.has_value());
}

TEST_CASE("Observed ends list the processes that used them") {
  const auto channel = new_channel(new_arena());
  put(*channel, 1).value();
  const ObservedChannel seen = look_at(*channel);
  CHECK(seen.senders.pids == std::vector<int>{process_id()});
  CHECK(seen.senders.never_used.empty());
  CHECK(seen.receivers.members == 1);
  CHECK(seen.receivers.pids.empty());  // the process has used the other end only
}

TEST_CASE("All ends in transit are counted even beyond the header") {
  const auto channel = new_channel(new_arena());
  for (int i = 0; i < 70; ++i) channel->membership().begin_transfer(End::kReceiving).value();
  channel->membership().begin_transfer(End::kSending).value();
  CHECK(look_at(*channel).receivers.in_transit == 70);
  CHECK(look_at(*channel).senders.in_transit == 1);
}

TEST_CASE("A sender stopped in a put is named and the rest is shown") {
  const auto channel = new_channel(new_arena());
  put(*channel, 1).value();
  const StoppedOwner owner(channel->arena(), header_of(*channel).senders_lock);
  const ObservedChannel seen = look_at(*channel);
  CHECK(seen.senders.locked_by == owner.pid());
  CHECK(seen.queued == 1);
  CHECK(queued_in(*channel).size() == 1);
}

TEST_CASE("Queued messages are observed in order and stay queued") {
  const auto channel = new_channel(new_arena(), with_capacity(0));
  for (std::uint64_t number = 0; number < 50; ++number) put(*channel, number, number % 7 == 0 ? 400 : 3).value();
  for (std::uint64_t number = 0; number < 11; ++number) get(*channel).value();
  const auto seen = queued_in(*channel);
  REQUIRE(seen.size() == 39);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    CHECK(seen[i].ticket == 11 + i);
    CHECK(seen[i].in_block == ((11 + i) % 7 == 0));
    CHECK(number_in(seen[i].frame) == 11 + i);
    CHECK(seen[i].sender == process_id());
  }
  CHECK(queued_in(*channel, 3).size() == 3);
  CHECK(drain(*channel).size() == 39);
  CHECK(queued_in(*channel).empty());
}

TEST_CASE("A frame over the limit is named and not copied") {
  const auto channel = new_channel(new_arena());
  put(*channel, 1, 1000).value();
  const auto seen = observer::snapshot_queue(channel->arena()->uuid(), memory::pack(channel->block()), 1, 100).value();
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].bytes == 8000);
  CHECK(seen[0].frame.empty());
}

TEST_CASE("A busy channel shows no torn message and no excess count") {
  const auto channel = new_channel(new_arena(), with_capacity(8));
  std::atomic<bool> over{false};
  std::thread sender([&] {
    for (std::uint64_t number = 0; !over; ++number) put(*channel, number, number % 3 == 0 ? 200 : 3).value();
    channel->membership().leave(End::kSending);
  });
  std::thread receiver([&] {
    while (get(*channel).ok()) {
    }
  });
  for (int look = 0; look < 100; ++look) {
    const ObservedChannel seen = look_at(*channel);
    if (seen.consistent) CHECK(seen.queued <= 8);
    for (const auto& message : queued_in(*channel)) {
      if (!message.frame.empty()) CHECK(number_in(message.frame) == message.ticket);
    }
  }
  over = true;
  sender.join();
  receiver.join();
}

// guarantee: observer-is-passive
TEST_CASE("A snapshot of a channel with stopped users changes nothing") {
  const auto channel = new_channel(new_arena(4 * kMiB));
  const Gate ready;
  Child child([&] {
    put(*channel, 1, 300).value();
    put(*channel, 2).value();
    ready.open();
    pause();
    return true;
  });
  ready.wait();
  child.signal(SIGSTOP);
  child.wait_until_stopped();
  const auto before = bytes_of(*channel->arena());
  for (int look = 0; look < 3; ++look) {
    CHECK(look_at(*channel).queued == 2);
    CHECK(queued_in(*channel).size() == 2);
  }
  CHECK(bytes_of(*channel->arena()) == before);
}

// guarantee: sleep-reasons
TEST_CASE("A wait for a message is shown with its reason and time") {
  const auto channel = new_channel(new_arena());
  Child child([&] { return get(*channel).ok(); });
  const auto sleeping = [&] {
    const ObservedArena arena = test::look_at(*channel->arena());
    for (const ObservedParticipant& one : arena.participants) {
      if (one.pid == child.pid() && !one.waits.empty()) return one.waits;
    }
    return std::vector<ObservedWait>{};
  };
  auto waits = sleeping();
  while (waits.empty()) waits = sleeping();
  REQUIRE(waits.size() == 1);
  CHECK(waits[0].what == "message");
  CHECK(waits[0].block == memory::pack(channel->block()));
  CHECK(waits[0].thread == child.pid());
  CHECK(waits[0].seconds > 0);
  const double first = look_at(*channel).empty_seconds;
  while (look_at(*channel).empty_seconds <= first) {
  }
  CHECK(look_at(*channel).full_seconds == 0);
  put(*channel, 1).value();
  CHECK(child.succeeded());
  CHECK(sleeping().empty());
  const double last = look_at(*channel).empty_seconds;
  CHECK(last > first);
  CHECK(look_at(*channel).empty_seconds == last);
}

// guarantee: sleep-times
TEST_CASE("A wait for space is shown and stops counting after a kill") {
  const auto channel = new_channel(new_arena(), with_capacity(1));
  put(*channel, 1).value();
  Child child([&] { return put(*channel, 2).ok(); });
  const auto waits_of = [&](bool alive) {
    for (const ObservedParticipant& one : test::look_at(*channel->arena()).participants) {
      if (one.namespace_pid == child.pid() && one.alive == alive) return one.waits;
    }
    return std::vector<ObservedWait>{};
  };
  auto waits = waits_of(true);
  while (waits.empty()) waits = waits_of(true);
  CHECK(waits[0].what == "space");
  child.kill_and_wait();
  CHECK(waits_of(false).size() == 1);  // the wait in which it died
  const double slept = look_at(*channel).full_seconds;
  CHECK(look_at(*channel).full_seconds == slept);
  notice_deaths(*channel);
  CHECK(header_of(*channel).slept[End::kSending].sleepers.is_empty());
  CHECK(look_at(*channel).full_seconds == slept);
}

// guarantee: sleep-reasons
TEST_CASE("A wait for a lock is shown with the lock owner") {
  const auto channel = new_channel(new_arena());
  const StoppedOwner owner(channel->arena(), header_of(*channel).senders_lock);
  Child child([&] { return put(*channel, 1).ok(); });
  for (;;) {
    const ObservedArena arena = test::look_at(*channel->arena());
    const auto found = std::find_if(arena.participants.begin(), arena.participants.end(),
                                    [&](const auto& one) { return one.pid == child.pid() && !one.waits.empty(); });
    if (found == arena.participants.end()) continue;
    CHECK(found->waits[0].what == "lock");
    CHECK(found->waits[0].lock_owner == owner.pid());
    break;
  }
}

TEST_CASE("A control block of another version is named as such") {
  const auto channel = new_channel(new_arena());
  header_of(*channel).version = 99;
  CHECK(look_at(*channel).refused.find("layout version 99") != std::string::npos);
  header_of(*channel).version = channel::kChannelVersion;
}
