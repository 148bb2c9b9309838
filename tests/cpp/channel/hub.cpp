// One descriptor for all ends that a process waits for.
#include <poll.h>

#include <set>

#include "channel/wake_hub.h"
#include "support/catch2.h"
#include "support/channels.h"
#include "support/process.h"

using namespace shmtree;
using namespace shmtree::test;
using channel::EndName;
using channel::WakeHub;

namespace {

std::shared_ptr<WakeHub> new_hub() {
  return WakeHub::of_this_process().value();
}
std::vector<EndName> told(WakeHub& hub) {
  bool lost = false;
  auto names = hub.take(lost);
  REQUIRE_FALSE(lost);
  return names;
}
bool readable(const WakeHub& hub) {
  pollfd entry{hub.fd(), POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}
bool awaits(Channel& channel, End end, const WakeHub& hub) {
  return !channel.watchers().await(end, hub).value();
}

}  // namespace

TEST_CASE("A hub is notified once for each await of an end") {
  auto channel = new_channel(new_arena());
  auto hub = new_hub();
  for (int i = 0; i < 3; ++i) {
    REQUIRE(awaits(*channel, End::kReceiving, *hub));
    REQUIRE_FALSE(readable(*hub));
    put(*channel, 1).value();
    put(*channel, 2).value();
    REQUIRE(readable(*hub));
    REQUIRE(told(*hub) == std::vector{channel->watchers().name_of(End::kReceiving)});
    REQUIRE_FALSE(readable(*hub));
    get_several(*channel, 2).value();
  }
}

TEST_CASE("A sender that awaits space is notified after a get") {
  auto channel = new_channel(new_arena(), with_capacity(1));
  auto hub = new_hub();
  put(*channel, 1).value();
  REQUIRE(awaits(*channel, End::kSending, *hub));
  get(*channel).value();
  REQUIRE(told(*hub) == std::vector{channel->watchers().name_of(End::kSending)});
}

TEST_CASE("await is ready at once if a message or the end is there") {
  auto channel = new_channel(new_arena());
  auto hub = new_hub();
  put(*channel, 1).value();
  REQUIRE_FALSE(awaits(*channel, End::kReceiving, *hub));
  get(*channel).value();
  REQUIRE(awaits(*channel, End::kReceiving, *hub));
  channel->membership().leave(End::kSending);
  REQUIRE(told(*hub) == std::vector{channel->watchers().name_of(End::kReceiving)});
  REQUIRE_FALSE(awaits(*channel, End::kReceiving, *hub));
}

// guarantee: coroutine-descriptor
TEST_CASE("A hub reports every awaited end or that some were lost") {
  auto arena = new_arena();
  auto hub = new_hub();
  std::vector<std::shared_ptr<Channel>> channels;
  std::set<EndName> awaited, names;
  for (int i = 0; i < 60; ++i) {
    channels.push_back(new_channel(arena));
    REQUIRE(awaits(*channels.back(), End::kReceiving, *hub));
    awaited.insert(channels.back()->watchers().name_of(End::kReceiving));
  }
  REQUIRE(awaited.size() == channels.size());
  bool lost = false;
  for (const auto& channel : channels) put(*channel, 1).value();
  for (const EndName& name : hub->take(lost)) names.insert(name);
  REQUIRE((lost || names == awaited));
  for (const EndName& name : names) REQUIRE(awaited.contains(name));
  REQUIRE_FALSE(readable(*hub));
}

TEST_CASE("A process has one hub that closes with its last reference") {
  auto hub = new_hub();
  REQUIRE(new_hub() == hub);
  const platform::WakeAddress address = hub->address();
  hub.reset();
  REQUIRE(new_hub()->address() != address);
}

TEST_CASE("A forked child has a hub separate from its parent") {
  auto channel = new_channel(new_arena());
  auto hub = new_hub();
  REQUIRE(awaits(*channel, End::kReceiving, *hub));
  put(*channel, 1).value();
  Child child([&] {
    bool lost = false;
    const bool took = !hub->take(lost).empty() || lost;
    const auto mine = new_hub();
    return !took && mine != hub && mine->address() != hub->address();
  });
  REQUIRE(child.succeeded());
  REQUIRE(told(*hub).size() == 1);
}

TEST_CASE("A hub reports invalid notifications as lost") {
  auto channel = new_channel(new_arena());
  auto hub = new_hub();
  for (const std::size_t bytes : {1u, 31u, 33u, 200u}) {
    REQUIRE(platform::WakeSender().send(getpid(), hub->address(), std::string(bytes, 'x')));
    bool lost = false;
    REQUIRE(hub->take(lost).empty());
    REQUIRE(lost);
    REQUIRE_FALSE(readable(*hub));
  }
  REQUIRE(awaits(*channel, End::kReceiving, *hub));
  put(*channel, 1).value();
  REQUIRE(told(*hub) == std::vector{channel->watchers().name_of(End::kReceiving)});
}

TEST_CASE("An await stays pending until a process can reach the hub") {
  auto channel = new_channel(new_arena());
  auto hub = new_hub();
  REQUIRE(awaits(*channel, End::kReceiving, *hub));
  const int pid = getpid();
  auto& participant = channel->arena()->participants().slot(memory::slot_of(channel->arena()->current_identity()));
  participant.pid = 1;  // as seen from another PID namespace
  put(*channel, 1).value();
  REQUIRE_FALSE(readable(*hub));
  participant.pid = pid;
  put(*channel, 2).value();
  REQUIRE(told(*hub) == std::vector{channel->watchers().name_of(End::kReceiving)});
}

TEST_CASE("A process that leaves an end or dies no longer awaits it") {
  auto channel = new_channel(new_arena());
  channel::ChannelHeader& header = header_of(*channel);
  const auto is_awaited = [&] {
    bool any = false;
    header.awaiting[End::kReceiving].for_each([&](std::uint32_t) { any = true; });
    return any;
  };
  Gate waits;
  Child child([&] {
    const bool awaited = awaits(*channel, End::kReceiving, *new_hub());
    waits.open();
    while (pause() != 0 && awaited) {
    }
    return false;
  });
  waits.wait();
  REQUIRE(is_awaited());
  child.kill_and_wait();
  channel->arena()->participants().check(0);
  channel->arena()->reconcile(patience()).value();
  REQUIRE_FALSE(is_awaited());

  REQUIRE(awaits(*channel, End::kReceiving, *new_hub()));
  REQUIRE(is_awaited());
  channel->membership().leave(End::kReceiving);
  REQUIRE_FALSE(is_awaited());
}
