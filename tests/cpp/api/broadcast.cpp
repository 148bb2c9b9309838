// The C++ API of Broadcast: messages that every reader receives.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <numeric>
#include <string>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Child;

namespace {

Broadcast new_broadcast(BroadcastOptions options = {}) {
  options.arena = Arena::create({.max_bytes = 16 << 20}).value();
  return make_broadcast(options);
}
Subscriber reader_of(const Broadcast& broadcast, OnLag on_lag = OnLag::kBlock) {
  return broadcast.subscribe({.on_lag = on_lag}).value();
}
std::vector<int> numbers_of(const Subscriber& reader) {
  std::vector<int> numbers;
  while (auto item = reader.get(0s)) numbers.push_back(item->as<int>());
  return numbers;
}
void put_run(const Broadcast& broadcast, int first, int count) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  broadcast.put_many(numbers).value();
}
template <class T>
std::string text_of(const Result<T>& refused) {
  return refused.error().message;
}

}  // namespace

TEST_CASE("each subscriber gets all messages put after it subscribed") {
  const Broadcast broadcast = new_broadcast();
  const Subscriber one = reader_of(broadcast);
  CHECK(broadcast.put(1).value() == 0);
  const Subscriber other = reader_of(broadcast);
  put_run(broadcast, 2, 3);
  CHECK((one.size() == 4 && other.size() == 3));
  CHECK(numbers_of(one) == std::vector{1, 2, 3, 4});
  CHECK(numbers_of(other) == std::vector{2, 3, 4});
  CHECK((one.empty() && one.missed() == 0));
  CHECK(one.get(10ms).code() == Code::kEmpty);
}

TEST_CASE("put waits for a slow subscriber and names it in the error") {
  Broadcast broadcast = new_broadcast({.capacity = 2});
  Subscriber reader = reader_of(broadcast);
  put_run(broadcast, 0, 2);
  CHECK_FALSE(broadcast.has_space());
  const auto refused = broadcast.put(2, 10ms);
  CHECK(refused.code() == Code::kFull);
  CHECK(text_of(refused).find("process " + std::to_string(getpid()) + " has not read 2 messages") != std::string::npos);
  const std::vector<int> more{2, 3};
  CHECK(reader.get().value().as<int>() == 0);
  const auto some = broadcast.put_many(more, 0s);
  CHECK((some.code() == Code::kFull && some.error().completed == 1));
  CHECK(broadcast.pending_acks() == 2);
  CHECK(broadcast.wait_for_ack(2, 10ms).code() == Code::kTimeout);
  CHECK(broadcast.wait_for_ack(3, 10ms).code() == Code::kInvalid);  // not put yet
  CHECK(reader.get().value().as<int>() == 1);
  CHECK(broadcast.put(3).value() == 3);
  CHECK(broadcast.capacity() == 2);
  broadcast.close();
  CHECK(broadcast.capacity() == 0);
}

TEST_CASE("the 257th subscription is refused with the limit") {
  const Broadcast broadcast = new_broadcast();
  std::vector<Subscriber> readers;
  for (int i = 0; i < 256; ++i) readers.push_back(reader_of(broadcast, OnLag::kSkip));
  const auto refused = broadcast.subscribe();
  CHECK(refused.code() == Code::kInvalid);
  CHECK(text_of(refused).find("already has 256 subscriptions, which is the limit") != std::string::npos);
  readers[17].close();
  CHECK(broadcast.subscribe().ok());
}

// guarantee: broadcast-dead-publisher
TEST_CASE("a kWait stream stays open after its last publisher exits") {
  const Broadcast broadcast = new_broadcast({.on_peer_death = OnPeerDeath::kWait});
  const Subscriber reader = reader_of(broadcast);
  Broadcast(broadcast).close();
  CHECK(reader.get(0s).code() == Code::kEmpty);
}

TEST_CASE("a lagging subscriber skips messages by its OnLag policy") {
  const Broadcast broadcast = new_broadcast({.capacity = 4});
  const Subscriber skips = reader_of(broadcast, OnLag::kSkip);
  const Subscriber latest = reader_of(broadcast, OnLag::kLatest);
  const Subscriber told = reader_of(broadcast, OnLag::kRaise);
  put_run(broadcast, 0, 10);
  CHECK(numbers_of(skips) == std::vector{6, 7, 8, 9});
  CHECK(skips.missed() == 6);
  CHECK(numbers_of(latest) == std::vector{9});
  CHECK(latest.missed() == 9);
  const auto overrun = told.get(0s);
  CHECK((overrun.code() == Code::kOverrun && overrun.error().missed == 6));
  CHECK(numbers_of(told) == std::vector{6, 7, 8, 9});
  put_run(broadcast, 10, 5);
  CHECK(told.get(0s).error().missed == 1);
  CHECK(told.missed() == 7);
  CHECK(told.get_many(8).value().size() == 4);
}

TEST_CASE("a new subscriber starts at the next or oldest kept message") {
  const Broadcast broadcast = new_broadcast({.capacity = 4, .history = 3});
  put_run(broadcast, 0, 10);
  CHECK(numbers_of(broadcast.subscribe({.start = StartAt::kOldest}).value()) == std::vector{7, 8, 9});
  CHECK(numbers_of(reader_of(broadcast)).empty());
  const BroadcastStats stats = broadcast.stats().value();
  CHECK((stats.put == 10 && stats.capacity == 4 && stats.history == 3 && stats.subscribers == 0));
  CHECK(stats.publishers == std::vector<int>{getpid()});
}

TEST_CASE("bytes and structs and loans are broadcast") {
  struct Pose {
    double x = 0, y = 0;
  };
  struct Image {
    int number = 0;
    unsigned char pixels[100'000] = {};
  };
  const Broadcast broadcast = new_broadcast({.capacity = 2});
  const Subscriber one = reader_of(broadcast), other = reader_of(broadcast);
  broadcast.put_struct(Pose{1, 2}).value();
  CHECK(one.get_struct<Pose>().value().y == 2);
  CHECK(other.get_bytes().value().as<Pose>().x == 1);
  auto loan = broadcast.loan<Image>().value();
  loan->number = 5;
  const void* place = &*loan;
  put_run(broadcast, 0, 2);
  CHECK(broadcast.put(std::move(loan), 0s).code() == Code::kFull);
  REQUIRE(loan);
  CHECK((one.get_many(2).value().size() == 2 && other.get_many(2).value().size() == 2));
  broadcast.put(std::move(loan)).value();
  CHECK_FALSE(loan);
  CHECK(broadcast.put(std::move(loan)).code() == Code::kInvalid);
  const FlatItem first = one.get_bytes().value(), second = other.get_bytes().value();
  CHECK((first.bytes().data() == place && second.bytes().data() == place && first.as<Image>().number == 5));
  broadcast.put_bytes(std::as_bytes(std::span("some text"))).value();
  CHECK(one.get_struct<Pose>().code() == Code::kInvalid);
  CHECK(other.get_bytes().value().size() == 10);
  broadcast.put("text").value();
  const auto refused = one.get_bytes();
  CHECK((refused.code() == Code::kInvalid && refused.error().ticket == 5));
}

TEST_CASE("put refuses a loan made by another channel") {
  const Arena arena = Arena::create({.max_bytes = 16 << 20}).value();
  const Broadcast broadcast = make_broadcast({.arena = arena});
  auto [sender, receiver] = make_pair({.arena = arena});
  auto theirs = broadcast.loan_bytes(10).value();
  CHECK(sender.put(std::move(theirs)).code() == Code::kInvalid);
  auto ours = sender.loan_bytes(10).value();
  CHECK(broadcast.put(std::move(ours)).code() == Code::kInvalid);
  CHECK(sender.put(std::move(ours)).ok());
  CHECK(broadcast.put(std::move(theirs)).ok());
}

TEST_CASE("the first process that reads takes over a subscription") {
  const Broadcast broadcast = new_broadcast({.capacity = 1});
  Subscriber reader = reader_of(broadcast);
  broadcast.put(1).value();
  Child child([&] { return reader.get(20s).value().as<int>() == 1 && reader.handle().code() == Code::kClosed; });
  REQUIRE(child.succeeded());
  CHECK(reader.get(0s).code() == Code::kClosed);
  CHECK(reader.handle().code() == Code::kClosed);
  broadcast.put(2, 20s).value();  // does not block, because the reader has closed
  Subscriber closed = reader_of(broadcast);
  closed.close();
  CHECK((closed.closed() && closed.get().code() == Code::kClosed && closed.size() == 0 && closed.missed() == 0));
}

TEST_CASE("put ignores killed subscribers and stopped skipping ones") {
  const Broadcast broadcast = new_broadcast({.capacity = 1});
  const Subscriber reader = reader_of(broadcast), theirs = reader_of(broadcast);
  const Subscriber skips = reader_of(broadcast, OnLag::kSkip);
  Child stopped([&] {
    skips.get(20s).value();
    return raise(SIGSTOP) == 0;
  });
  Child killed([&] {
    theirs.get(20s).value();
    return kill(getpid(), SIGKILL) == 0;
  });
  broadcast.put(0).value();
  stopped.wait_until_stopped();
  CHECK_FALSE(killed.succeeded());
  for (int i = 0; i < 20; ++i) {
    CHECK(reader.get(20s).value().as<int>() == i);
    CHECK(broadcast.put(i + 1, 20s).ok());
  }
  CHECK(broadcast.wait_for_all_ack(0s).code() == Code::kTimeout);
  CHECK(reader.get(20s).value().as<int>() == 20);
  broadcast.wait_for_all_ack(20s).value();
  broadcast.flush(0s).value();
  stopped.signal(SIGCONT);
  CHECK(stopped.succeeded());
}
