// Messages of a killed taker that its successor receives.
#include <algorithm>

#include "support/channel_check.h"
#include "support/survivors.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

// A process that is the channel's successor until it is killed.
class Successor {
 public:
  explicit Successor(Channel& channel)
      : child_([&] {
          const bool done = channel.become_successor().ok();
          ready_.open(done);
          for (;;) pause();
          return done;
        }) {
    REQUIRE(ready_.wait() == 1);
  }
  void kill_it() { child_.kill_and_wait(); }

 private:
  Gate ready_;
  Child child_;
};

// Runs a process that takes `count` messages and is killed. `leaves`: it leaves its messages to the successor.
void take_and_die(Channel& channel, std::size_t count, bool leaves) {
  Child taker([&] {
    if (leaves) channel.leave_to_successor().value();
    std::vector<Delivery> taken;
    while (taken.size() < count) taken.push_back(take(channel).value());
    kill(getpid(), SIGKILL);
    return true;
  });
  REQUIRE(taker.was_killed());
}
void recover(Channel& channel) {
  channel.arena()->participants().check(0);
  REQUIRE(channel.arena()->reconcile(patience()).ok());
}
Numbers numbers_of(std::vector<Delivery>& deliveries) {
  Numbers numbers;
  for (Delivery& delivery : deliveries) numbers.push_back(number_in(delivery));
  return numbers;
}

}  // namespace

TEST_CASE("Only inherited() returns messages left to a successor") {
  for (const std::size_t words : {1u, 700u}) {
    auto channel = new_channel(new_arena(), unlimited());
    putting(0, 4, words)(*channel);
    Successor successor(*channel);
    take_and_die(*channel, 2, true);
    recover(*channel);
    REQUIRE(get(*channel, no_wait()).value() == 2);
    std::vector<std::uint64_t> unacked = channel->unacked();
    std::sort(unacked.begin(), unacked.end());
    REQUIRE(unacked == Numbers{0, 1});
    {
      auto left = channel->inherited(patience()).value();
      REQUIRE(numbers_of(left) == Numbers{0, 1});
      REQUIRE(left[0].message().attempts() == 1);
      REQUIRE(left[0].ack(patience()).ok());
      REQUIRE(channel->inherited(patience()).value().empty());
    }
    REQUIRE(channel::check(*channel->arena()) == "");
    // message 1 was dropped by this process, which leaves nothing to the successor
    REQUIRE(drain(*channel) == Numbers{1, 3});
    REQUIRE(channel->unacked().empty());
  }
}

TEST_CASE("Messages not left to a successor are redelivered") {
  auto channel = new_channel(new_arena(), unlimited());
  putting(0, 3, 1)(*channel);
  Successor successor(*channel);
  take_and_die(*channel, 1, true);
  take_and_die(*channel, 2, false);
  recover(*channel);
  REQUIRE(drain(*channel) == Numbers{1, 2});
  auto left = channel->inherited(patience()).value();
  REQUIRE(numbers_of(left) == Numbers{0});
}

TEST_CASE("Left messages are redelivered when the successor dies") {
  for (const bool successor_first : {false, true}) {
    auto channel = new_channel(new_arena(), unlimited());
    putting(0, 3, 1)(*channel);
    Successor successor(*channel);
    if (successor_first) successor.kill_it();
    take_and_die(*channel, 2, true);
    if (!successor_first) recover(*channel);
    successor.kill_it();
    recover(*channel);
    REQUIRE(drain(*channel) == Numbers{0, 1, 2});
    REQUIRE(channel->inherited(patience()).value().empty());
  }
}

#if defined(SHMTREE_CRASH_POINTS)

TEST_CASE("A successor killed anywhere passes all messages to the next") {
  bool killed = true;
  for (std::int64_t n = 1; killed; ++n) {
    REQUIRE(n < 1'000);
    auto channel = new_channel(new_arena(), unlimited());
    putting(0, 6, 700)(*channel);
    Successor successor(*channel);
    take_and_die(*channel, 2, true);
    killed = killed_at_change(n, [&] {
      channel->leave_to_successor().value();
      auto left = channel->inherited(patience()).value();
      left.push_back(take(*channel).value());
      left[0].ack(patience()).value();
    });
    INFO("killed before change " << n);
    channel->leave_to_successor().value();
    auto left = channel->inherited(patience()).value();
    Numbers numbers = numbers_of(left);
    for (const std::uint64_t number : drain(*channel)) numbers.push_back(number);
    REQUIRE((numbers == Numbers{0, 1, 2, 3, 4, 5} || numbers == Numbers{1, 2, 3, 4, 5}));
    for (Delivery& delivery : left) REQUIRE(delivery.ack(patience()).ok());
    REQUIRE(channel->unacked().empty());
    REQUIRE(channel::check(*channel->arena()) == "");
  }
}

#endif
