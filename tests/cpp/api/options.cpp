// Options of pairs: stay open, drop the oldest messages, report each death, count the attached processes.
#include <signal.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace shmtree;
using namespace shmtree::test;
using namespace std::chrono_literals;

// guarantee: keep-open-both
TEST_CASE("A put waits for the next receiver with KeepOpen::kBoth") {
  const auto policy = GENERATE(OnPeerDeath::kRaise, OnPeerDeath::kWait);
  const bool exits = GENERATE(true, false);
  auto [sender, receiver] = make_pair({.capacity = 1, .on_peer_death = policy, .keep_open = KeepOpen::kBoth});
  Child first([to = sender, from = receiver, exits]() mutable {
    keep_only(from);
    from.get(60s).value();
    if (exits) from.close();
    return exits || raise(SIGKILL) == 0;
  });
  keep_only(sender);
  sender.put(1).value();
  REQUIRE((exits ? first.succeeded() : first.was_killed()));
  sender.put(2).value();
  REQUIRE(sender.put(3, 10ms).code() == Code::kFull);
  REQUIRE(sender.flush(10ms).code() == Code::kTimeout);
}

TEST_CASE("keep_open accepts bool") {
  PairOptions options{.keep_open = true};
  REQUIRE(options.keep_open == KeepOpen::kReceivers);
  options.keep_open = false;
  REQUIRE(options.keep_open == KeepOpen::kNo);
}

TEST_CASE("make_pair refuses values that are not enumerators") {
  CHECK_THROWS_WITH(make_pair({.keep_open = static_cast<KeepOpen::Value>(3)}),
                    "keep_open is 3, which is not a value of its enum");
  CHECK_THROWS_WITH(make_pair({.on_full = static_cast<OnFull>(2)}), "on_full is 2, which is not a value of its enum");
  CHECK_THROWS_WITH(make_pair({.on_peer_death = static_cast<OnPeerDeath>(-1)}),
                    "on_peer_death is -1, which is not a value of its enum");
}

// guarantee: wait-for-peers
TEST_CASE("wait_for_receivers reports how many are attached") {
  auto [sender, receiver] = make_pair();
  const Status waited = sender.wait_for_receivers(2, 10ms);
  REQUIRE(waited.code() == Code::kTimeout);
  REQUIRE(waited.error().message == "0 of 2 receivers were attached within the timeout");
}

// guarantee: wait-for-peers
TEST_CASE("wait_for_subscribers returns with the last subscription") {
  const Broadcast broadcast = make_broadcast();
  const Subscriber first = broadcast.subscribe().value();
  const Status waited = broadcast.wait_for_subscribers(2, 10ms);
  REQUIRE(waited.code() == Code::kTimeout);
  REQUIRE(waited.error().message == "1 of 2 subscribers were there within the timeout");
  std::optional<Subscriber> second;
  std::thread subscribing([&] { second = broadcast.subscribe().value(); });
  broadcast.wait_for_subscribers(2, 60s).value();
  subscribing.join();
}

TEST_CASE("keep_open continues a stream after each reported death") {
  PairOptions options{.on_peer_death = OnPeerDeath::kEach};
  options.keep_open = true;
  auto [sender, receiver] = make_pair(options);
  Child child([to = sender] {
    to.put(1).value();
    pause();
    return true;
  });
  REQUIRE(receiver.get(60s).value().as<int>() == 1);
  child.kill_and_wait();
  const auto told = receiver.get(60s);
  REQUIRE(told.code() == Code::kPeerDied);
  REQUIRE(told.error().pids == std::vector<int>{child.pid()});
  sender.close();
  REQUIRE(receiver.get(0s).code() == Code::kEmpty);
}

TEST_CASE("exist_ok names every option that differs") {
  PairOptions options{.name = "api-options-" + std::to_string(getpid())};
  const auto kept = make_pair(options);
  options.exist_ok = true;
  options.capacity = 16;
  options.on_peer_death = OnPeerDeath::kEach;
  CHECK_THROWS_WITH(make_pair(options), Catch::Matchers::EndsWith("capacity 8, not 16, on_peer_death raise, not each"));
}
