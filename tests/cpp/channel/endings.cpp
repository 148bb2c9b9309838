// The time at which receivers see the end of a stream, or of a queue that was shut down: once no message can come any
// more.
#include <optional>

#include "support/catch2.h"
#include "support/channel_check.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

using memory::Event;

enum class How { kLeave, kShutDown };
enum class Doing { kAck, kNack, kDie };

// A channel with some messages. Another process has taken the first one. On request, that process acks the message,
// nacks it or dies.
struct Taken {
  explicit Taken(How ends_by, Doing doing, std::uint64_t messages = 1) : how(ends_by) {
    for (std::uint64_t i = 0; i < messages; ++i) put(*channel, i).value();
    taker.emplace([this, doing] {
      Delivery delivery = take(*channel).value();
      taken.open();
      go.wait();
      if (doing == Doing::kDie) kill(getpid(), SIGKILL);
      return (doing == Doing::kAck ? delivery.ack(patience()) : delivery.nack(patience())).ok();
    });
    taken.wait();
  }
  void end() {
    if (how == How::kLeave) channel->membership().leave(End::kSending);
    if (how == How::kShutDown) channel->tasks().shut_down(false, patience()).value();
  }
  Code over() const { return how == How::kLeave ? Code::kClosed : Code::kShutDown; }
  Event& items() { return header_of(*channel).items; }

  How how;
  std::shared_ptr<Channel> channel =
      new_channel(new_arena(), with_capacity(0, how == How::kShutDown ? Ending::kNever : Ending::kRaise));
  Gate taken, go;
  std::optional<Child> taker;
};

std::uint32_t arm(Event& event) {
  event.waiters.store(1);
  return event.sequence.load();
}
bool was_woken(const Event& event, std::uint32_t since) {
  return event.waiters.load() == 0 && event.sequence.load() != since;
}

}  // namespace

// guarantee: end-after-unacked
TEST_CASE("The end is reported once no unacked message is left") {
  const Doing doing = GENERATE(Doing::kAck, Doing::kNack, Doing::kDie);
  Taken of(GENERATE(How::kLeave, How::kShutDown), doing);
  of.end();
  REQUIRE(code_of(get(*of.channel, no_wait())) == Code::kEmpty);
  REQUIRE(code_of(take(*of.channel, patience(20))) == Code::kEmpty);
  REQUIRE_FALSE(of.channel->ready());
  of.go.open();
  if (doing != Doing::kAck) REQUIRE(get(*of.channel).value() == 0);
  REQUIRE(code_of(get(*of.channel)) == of.over());
  REQUIRE(code_of(take(*of.channel)) == of.over());
  REQUIRE(of.channel->ready());
}

TEST_CASE("A process does not wait for its own unacked messages") {
  Taken of(GENERATE(How::kLeave, How::kShutDown), Doing::kAck, 2);
  Delivery mine = take(*of.channel).value();
  of.end();
  of.go.open();
  REQUIRE(of.taker->succeeded());
  REQUIRE(code_of(get(*of.channel)) == of.over());
  REQUIRE(mine.nack(patience()).ok());
  REQUIRE(get(*of.channel).value() == 1);
  REQUIRE(code_of(get(*of.channel)) == of.over());
}

// guarantee: end-after-unacked
TEST_CASE("The last ack wakes receivers that wait for the end") {
  Taken of(GENERATE(How::kLeave, How::kShutDown), Doing::kAck, 2);
  const bool has_one = GENERATE(false, true);
  Delivery mine = take(*of.channel).value();
  if (!has_one) mine.ack(patience()).value();
  of.end();
  const std::uint32_t since = arm(of.items());
  of.go.open();
  REQUIRE(of.taker->succeeded());
  REQUIRE(was_woken(of.items(), since));
  REQUIRE(code_of(get(*of.channel, no_wait())) == of.over());
}

TEST_CASE("Receiving the last nacked message wakes waiters for the end") {
  Taken of(GENERATE(How::kLeave, How::kShutDown), Doing::kNack);
  const bool takes = GENERATE(false, true);
  of.end();
  of.go.open();
  REQUIRE(of.taker->succeeded());
  const std::uint32_t since = arm(of.items());
  if (takes) REQUIRE(take(*of.channel).value().ack(patience()).ok());
  if (!takes) REQUIRE(get(*of.channel).value() == 0);
  REQUIRE(was_woken(of.items(), since));
}

// guarantee: end-after-unacked
TEST_CASE("The descriptor becomes readable once no message can come") {
  const bool has_one = GENERATE(false, true);
  Taken of(GENERATE(How::kLeave, How::kShutDown), Doing::kAck, 2);
  const int fd = of.channel->watchers().wake_fd(End::kReceiving).value();
  Delivery mine = take(*of.channel).value();
  if (!has_one) mine.ack(patience()).value();
  of.end();
  REQUIRE_FALSE(readable(fd));
  of.go.open();
  REQUIRE(of.taker->succeeded());
  REQUIRE(readable(fd));
  REQUIRE(code_of(get(*of.channel)) == of.over());
  REQUIRE(readable(fd));
}

TEST_CASE("The descriptor of the last taker is readable at the end") {
  Taken of(GENERATE(How::kLeave, How::kShutDown), Doing::kAck, 2);
  of.go.open();
  REQUIRE(of.taker->succeeded());
  Delivery mine = take(*of.channel).value();
  const int fd = of.channel->watchers().wake_fd(End::kReceiving).value();
  Gate up, go;
  Child other([&] {
    up.open();
    go.wait();
    of.end();
    return true;
  });
  up.wait();
  if (of.how == How::kLeave) of.channel->membership().leave(End::kSending);
  REQUIRE_FALSE(readable(fd));
  go.open();
  REQUIRE(other.succeeded());
  REQUIRE(readable(fd));
  REQUIRE(code_of(get(*of.channel)) == of.over());
}

TEST_CASE("The end waits for a nack that is not yet counted") {
  auto queue = new_channel(new_arena(), with_capacity(0, Ending::kNever));
  put(*queue, 1).value();
  take(*queue).value().nack(patience()).value();
  queue->tasks().shut_down(false, patience()).value();
  header_of(*queue).returned = 0;  // the state between the two stores of a nack
  REQUIRE(code_of(get(*queue, no_wait())) == Code::kEmpty);
  header_of(*queue).returned = 1;
  REQUIRE(get(*queue).value() == 1);
}

TEST_CASE("A shut down queue stays open while messages are reserved") {
  auto queue = new_channel(new_arena(), with_capacity(0, Ending::kNever));
  put(*queue, 1).value();
  queue->tasks().reserve(End::kReceiving, no_wait()).value();
  queue->tasks().shut_down(false, patience()).value();
  Child other([&] { return code_of(get(*queue, no_wait())) == Code::kEmpty && !queue->ready(); });
  REQUIRE(other.succeeded());
  Child waiting([&] { return code_of(get(*queue, patience(60'000))) == Code::kShutDown; });
  REQUIRE(get(*queue).value() == 1);
  REQUIRE(waiting.succeeded());
}

TEST_CASE("Immediate shutdown does not wait for unacked messages") {
  Taken of(How::kShutDown, Doing::kNack);
  of.channel->tasks().shut_down(true, patience()).value();
  REQUIRE(code_of(get(*of.channel)) == Code::kShutDown);
  REQUIRE(of.channel->ready());
  of.go.open();
  REQUIRE(of.taker->succeeded());
  REQUIRE(code_of(get(*of.channel)) == Code::kShutDown);
}
