// Options of pairs: stay open, drop the oldest messages, report each death, open an existing pair.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace shmtree;
using namespace shmtree::test;
using namespace std::chrono_literals;

namespace {

std::string own_name(const char* what) {
  return "api-options-" + std::to_string(getpid()) + "-" + what;
}

PairOptions there_already(std::string name) {
  PairOptions options{.name = std::move(name)};
  options.exist_ok = true;
  return options;
}

}  // namespace

// guarantee: server-restart
TEST_CASE("make_pair with exist_ok opens an existing pair") {
  const PairOptions options = there_already(own_name("given"));
  auto [sender, receiver] = make_pair(options);
  sender.put(1).value();
  auto [other_sender, other_receiver] = make_pair(options);
  REQUIRE(other_receiver.get(0s).value().as<int>() == 1);
  other_sender.put(2).value();
  REQUIRE(receiver.get(0s).value().as<int>() == 2);
}

// guarantee: server-restart
TEST_CASE("exist_ok with other options is refused with both values") {
  PairOptions options = there_already(own_name("others"));
  const auto kept = make_pair(options);
  options.capacity = 16;
  options.on_peer_death = OnPeerDeath::kEach;
  try {
    make_pair(options);
    FAIL("it was made");
  } catch (const BadResult& refused) {
    REQUIRE(refused.error().code == Code::kInvalid);
    REQUIRE(refused.error().message.ends_with("capacity 8, not 16, on_peer_death raise, not each"));
  }
}

TEST_CASE("exist_ok requires a name and the arena of the pair") {
  REQUIRE_THROWS_AS(make_pair(there_already("")), BadResult);
  PairOptions options = there_already(own_name("arena"));
  options.arena = Arena::create().value();
  const auto kept = make_pair(options);
  REQUIRE_NOTHROW(make_pair(options));
  options.arena = Arena::create().value();
  REQUIRE_THROWS_AS(make_pair(options), BadResult);
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
