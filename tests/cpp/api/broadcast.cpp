// The C++ API of Broadcast: messages that every reader receives.
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <numeric>
#include <stop_token>
#include <string>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/caller.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Caller;
using shmtree::test::Child;

namespace {

Broadcast new_broadcast(BroadcastOptions options = {}) {
  options.arena = Arena::create({.max_bytes = 16 << 20}).value();
  return make_broadcast(options);
}
Subscriber reader_of(const Broadcast& broadcast, OnLag on_lag = OnLag::kBlock) {
  return broadcast.subscribe({.on_lag = on_lag}).value();
}
Value frame(int number) {
  return Dict{{"number", number}, {"big", std::vector<int>(10'000, number)}};
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
bool is_readable(int fd, int milliseconds) {
  pollfd watched{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&watched, 1, milliseconds) == 1;
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

// guarantee: read-only-arrays
TEST_CASE("arrays received from a Broadcast are read-only and stable") {
  const Broadcast broadcast = new_broadcast();
  const Subscriber one = reader_of(broadcast), other = reader_of(broadcast);
  broadcast.put(frame(7)).value();
  const Item first = one.get().value(), second = other.get().value();
  CHECK(first["big"].view().read_only);
  CHECK_THROWS_AS(first["big"].view().mutable_data(), BadResult);
  CHECK(first["big"].view().elements == 10'000);
  CHECK_THROWS_AS(first["big"].span<int>(), BadResult);
  for (int i = 0; i < 50; ++i) {
    broadcast.put(frame(i)).value();
    CHECK(one.get().value()["number"].as<int>() == i);
    CHECK(other.get().value()["number"].as<int>() == i);
  }
  for (const int each : second["big"].span<const int>()) REQUIRE(each == 7);
}

TEST_CASE("put waits for a slow subscriber and the error names it") {
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
  std::atomic<Code> told{Code::kOs};
  {
    Caller stopped([&](const std::stop_token& stop) { told = broadcast.put(3, std::nullopt, stop).code(); });
    stopped.stop();
  }
  CHECK(told == Code::kInterrupted);
  {
    Caller waiting([&](const std::stop_token&) { told = broadcast.put(3).ok() ? Code::kExists : Code::kOs; });
    CHECK(reader.get().value().as<int>() == 1);
    waiting.join();
  }
  CHECK(told == Code::kExists);
  {
    Caller closed([&](const std::stop_token&) { told = broadcast.put(4).code(); });
    broadcast.close();
  }
  CHECK(told == Code::kClosed);
  CHECK((broadcast.closed() && broadcast.capacity() == 0 && broadcast.stats().code() == Code::kClosed));
  CHECK(numbers_of(reader) == std::vector{2, 3});
  CHECK(reader.get().code() == Code::kClosed);
}

TEST_CASE("a lagging subscriber skips as its OnLag option says") {
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

TEST_CASE("subscribe refuses a 257th subscriber and names the limit") {
  const Broadcast broadcast = new_broadcast();
  std::vector<Subscriber> readers;
  for (int i = 0; i < 256; ++i) readers.push_back(reader_of(broadcast, OnLag::kSkip));
  const auto refused = broadcast.subscribe();
  CHECK(refused.code() == Code::kInvalid);
  CHECK(text_of(refused).find("already has 256 subscriptions, which is the limit") != std::string::npos);
  readers[17].close();
  broadcast.put(1).value();
  CHECK(broadcast.subscribe().ok());
  for (std::size_t i = 0; i < readers.size(); ++i) CHECK(readers[i].get(0s).ok() == (i != 17));
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

TEST_CASE("an array made by new_array is broadcast without a copy") {
  const Broadcast broadcast = new_broadcast();
  const Subscriber reader = reader_of(broadcast);
  const NewArray array = broadcast.new_array(DType::kInt32, {100'000}).value();
  const std::span<int> elements = array.span<int>();
  std::iota(elements.begin(), elements.end(), 0);
  broadcast.put(Dict{{"array", array}}).value();
  const Item item = reader.get().value();
  CHECK(static_cast<const void*>(item["array"].view().data) == array.data);
  CHECK(item["array"].span<const int>()[99'999] == 99'999);
}

TEST_CASE("another process puts and subscribes by name and by handle") {
  const std::string name = "test-broadcast-" + std::to_string(getpid());
  Broadcast broadcast = make_broadcast({.name = name});
  Subscriber reader = reader_of(broadcast);
  broadcast.put("first").value();
  const std::string handle = broadcast.handle().value(), subscription = reader_of(broadcast).handle().value();
  Child child([&] {
    const Broadcast by_name = open_broadcast(name).value(), by_handle = Broadcast::open(handle).value();
    const Subscriber own = reader_of(by_handle), given = Subscriber::open(subscription).value();
    by_name.put("second").value();
    return own.get(20s).value().as<std::string>() == "second" && given.get(20s).value().as<std::string>() == "second";
  });
  REQUIRE(child.succeeded());
  CHECK(reader.get(20s).value().as<std::string>() == "first");
  CHECK(reader.get(20s).value().as<std::string>() == "second");
  CHECK(open_latest(name).code() == Code::kInvalid);
  CHECK_THROWS_AS(make_broadcast({.name = name}), BadResult);
  CHECK(Latest::open(handle).code() == Code::kIncompatible);
  CHECK(Subscriber::open(handle).code() == Code::kIncompatible);
  CHECK(Broadcast::open("0").code() == Code::kInvalid);
  broadcast.close();
  CHECK(open_broadcast(name).ok());  // the name exists as long as a process reads
  reader.close();
  CHECK(open_broadcast(name).code() == Code::kNotFound);
}

TEST_CASE("the first process that reads takes over a subscription") {
  const Broadcast broadcast = new_broadcast({.capacity = 1});
  Subscriber reader = reader_of(broadcast);
  broadcast.put(1).value();
  Child child([&] { return reader.get(20s).value().as<int>() == 1 && reader.handle().code() == Code::kClosed; });
  REQUIRE(child.succeeded());
  CHECK(reader.get(0s).code() == Code::kClosed);
  CHECK(reader.handle().code() == Code::kClosed);
  broadcast.put(2, 20s).value();  // does not block: the reader has gone
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

TEST_CASE("get reports a publisher death or close after all messages") {
  const Broadcast broadcast = new_broadcast();
  const Subscriber reader = reader_of(broadcast);
  const std::string handle = broadcast.handle().value();
  Child killed([&] {
    Broadcast::open(handle).value().put("last words").value();
    return kill(getpid(), SIGKILL) == 0;
  });
  CHECK_FALSE(killed.succeeded());
  CHECK(reader.get(20s).value().as<std::string>() == "last words");
  const auto died = reader.get(20s);
  CHECK((died.code() == Code::kPeerDied && died.error().pids == std::vector<int>{killed.pid()}));
  Broadcast other = new_broadcast();
  const Subscriber its_reader = reader_of(other);
  Child leaves([&] {
    put_run(other, 1, 2);
    other.close();
    return true;
  });
  REQUIRE(leaves.succeeded());
  int sum = 0;
  for (const Item& item : its_reader) sum += item.as<int>();
  CHECK(sum == 3);
  const Broadcast endless = new_broadcast({.on_peer_death = OnPeerDeath::kWait});
  CHECK(reader_of(endless).get(10ms).code() == Code::kEmpty);
  CHECK_THROWS_AS(make_broadcast({.on_peer_death = OnPeerDeath::kEach}), BadResult);
  CHECK_THROWS_AS(make_broadcast({.capacity = 0}), BadResult);
}

TEST_CASE("get reports fail() after the last object has closed") {
  Broadcast broadcast = new_broadcast();
  const Subscriber reader = reader_of(broadcast);
  const std::string handle = broadcast.handle().value();
  Child fails([&] {
    Broadcast one = Broadcast::open(handle).value(), two = Broadcast::open(handle).value();
    broadcast.close();  // the child's copy
    one.put(1).value();
    one.fail();
    two.put(2).value();
    two.close();
    return one.closed();
  });
  REQUIRE(fails.succeeded());
  broadcast.close();
  CHECK(reader.get(20s).value().as<int>() == 1);
  CHECK(reader.get(20s).value().as<int>() == 2);
  const auto failed = reader.get(20s);
  REQUIRE(failed.code() == Code::kPeerDied);
  CHECK(failed.error().pids == std::vector<int>{fails.pid()});
  CHECK(failed.error().exit_code == -1);
}

// guarantee: broadcast-dead-publisher
TEST_CASE("get reports processes that were killed before they put") {
  Broadcast broadcast = new_broadcast();
  const Subscriber reader = reader_of(broadcast);
  Child killed([&] { return kill(getpid(), SIGKILL) == 0; });
  CHECK(killed.was_killed());
  const auto died = reader.get(60s);  // this process made the Broadcast and waits
  CHECK((died.code() == Code::kPeerDied && died.error().pids == std::vector<int>{killed.pid()}));
  broadcast.put(1).value();
  CHECK(reader.get(60s).value().as<int>() == 1);
}

// guarantee: broadcast-dead-publisher
TEST_CASE("get ends if no process is left that could put first") {
  Broadcast broadcast = new_broadcast();
  const Subscriber reader = reader_of(broadcast);
  CHECK(reader.get(0s).code() == Code::kEmpty);
  broadcast.close();
  CHECK(reader.get(60s).code() == Code::kClosed);
  const Broadcast waits = new_broadcast({.on_peer_death = OnPeerDeath::kWait});
  const Subscriber its_reader = reader_of(waits);
  Broadcast(waits).close();
  CHECK(its_reader.get(0s).code() == Code::kEmpty);
}

TEST_CASE("wait and fileno report subscribers with messages") {
  const Broadcast broadcast = new_broadcast();
  std::vector<Subscriber> readers{reader_of(broadcast), reader_of(broadcast)};
  CHECK(wait(readers, 10ms).value().empty());
  const int fd = readers[0].fileno().value();
  CHECK_FALSE(is_readable(fd, 0));
  {
    std::vector<std::size_t> ready;
    Caller waiting([&](const std::stop_token&) { ready = wait(readers, 60s).value(); });
    broadcast.put(1).value();
    waiting.join();
    CHECK_FALSE(ready.empty());
  }
  CHECK(is_readable(fd, 30'000));
  readers[0].get().value();
  CHECK_FALSE(is_readable(fd, 0));
  CHECK(wait(readers).value() == std::vector<std::size_t>{1});
  readers[1].get().value();
  readers[1].close();
  CHECK(wait(readers).value() == std::vector<std::size_t>{1});
  CHECK(wait(std::span<const Subscriber>()).value().empty());
}

TEST_CASE("a blocked subscriber get ends on close or stop request") {
  const Broadcast broadcast = new_broadcast();
  Subscriber reader = reader_of(broadcast);
  std::atomic<Code> told{Code::kOs};
  {
    Caller stopped([&](const std::stop_token& stop) { told = reader.get(std::nullopt, stop).code(); });
    stopped.stop();
  }
  CHECK(told == Code::kInterrupted);
  {
    Caller closed([&](const std::stop_token&) { told = reader.get().code(); });
    reader.close();
  }
  CHECK(told == Code::kClosed);
}
