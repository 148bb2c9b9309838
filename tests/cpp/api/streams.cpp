// Whole streams: range-for, several streams at once, and several receivers.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Child;

namespace {

Arena new_arena() {
  return Arena::create({.max_bytes = 16 << 20}).value();
}

}  // namespace

TEST_CASE("stats report processes that never used their end") {
  auto [sender, receiver] = shmtree::make_pair();
  shmtree::ChannelStats stats = receiver.stats().value();
  CHECK(stats.senders_attached == 1);
  CHECK(stats.senders_never_used == std::vector<int>{getpid()});
  CHECK(stats.receivers_never_used == std::vector<int>{getpid()});
  REQUIRE(sender.put(1).ok());
  stats = receiver.stats().value();
  CHECK(stats.senders_attached == 1);
  CHECK(stats.senders_never_used.empty());
  CHECK(stats.receivers == 1);
  CHECK(stats.receivers_attached == 0);
  CHECK(stats.receivers_never_used.empty());
}

TEST_CASE("range-for throws a peer death and can continue after it") {
  auto [sender, receiver] = make_pair({.arena = new_arena()});
  Child child([&, to = sender, from = receiver]() mutable {
    from.close();
    to.put(1).value();
    raise(SIGKILL);
    return true;
  });
  sender.close();
  CHECK_FALSE(child.succeeded());
  std::vector<int> got;
  const auto read = [&] {
    for (const Item& item : receiver) got.push_back(item.as<int>());
  };
  CHECK_THROWS_AS(read(), BadResult);
  CHECK(got == std::vector<int>{1});
  CHECK_NOTHROW(read());
}

TEST_CASE("put_many puts a range in order") {
  auto [sender, receiver] = make_pair({.capacity = 0, .arena = new_arena()});
  std::vector<Value> values;
  for (int i = 0; i < 100; ++i) values.push_back(i == 50 ? Value(std::string(5'000, 'x')) : Value(i));
  sender.put_many(values).value();
  sender.put_many(std::vector<std::string>{"a", "b"}).value();
  sender.put_many(std::vector<Value>{}).value();
  for (int i = 0; i < 100; ++i) {
    const Item item = receiver.get(0s).value();
    CHECK((i == 50 ? item.kind() == Kind::kLongStr : item.as<int>() == i));
  }
  CHECK(receiver.get(0s).value().as<std::string>() == "a");
  CHECK(receiver.get(0s).value().as<std::string>() == "b");
  CHECK(receiver.empty());
}

TEST_CASE("put_many reports the number put before a full or bad value") {
  auto [sender, receiver] = make_pair({.capacity = 3, .arena = new_arena()});
  const std::vector<Value> five{1, 2, 3, 4, 5};
  const Status full = sender.put_many(five, 0s);
  REQUIRE(full.code() == Code::kFull);
  CHECK(full.error().completed == 3);
  for (const int i : {1, 2, 3}) CHECK(receiver.get(0s).value().as<int>() == i);
  const std::vector<Value> bad{6, "\xff", 7};
  const Status refused = sender.put_many(bad, 0s);
  REQUIRE(refused.code() == Code::kInvalid);
  CHECK(refused.error().completed == 1);
  CHECK(receiver.get(0s).value().as<int>() == 6);
  CHECK(receiver.empty());
  const std::vector<Value> many{1, 2, 3, 4, "\xff"};
  const Status first_error = sender.put_many(many, 0s);
  CHECK(first_error.code() == Code::kFull);
  CHECK(first_error.error().completed == 3);
  sender.close();
  CHECK(sender.put_many(five).code() == Code::kClosed);
}

TEST_CASE("put_many sends new_array arrays without a copy") {
  auto [sender, receiver] = make_pair({.arena = new_arena()});
  const ArrayRef array = sender.new_array(DType::kFloat32, {10'000}).value();
  const std::vector<Value> values{1, array, 2};
  sender.put_many(values).value();
  CHECK(receiver.get(0s).value().as<int>() == 1);
  CHECK(receiver.get(0s).value().view().data == array.data);
  CHECK(receiver.get(0s).value().as<int>() == 2);
}

TEST_CASE("wait returns receivers that have a message or have ended") {
  auto [a, from_a] = make_pair({.arena = new_arena()});
  auto [b, from_b] = make_pair({.arena = new_arena()});
  auto [c, from_c] = make_pair({.arena = new_arena()});
  const std::vector<Receiver> all{from_a, from_b, from_c};
  CHECK(wait(all, 0s).value().empty());
  CHECK(wait({}, std::nullopt).value().empty());
  b.put(1).value();
  CHECK(wait(all).value() == std::vector<std::size_t>{1});
  c.close();
  CHECK(wait(all, 0s).value() == std::vector<std::size_t>{1, 2});
  from_b.get(0s).value();
  CHECK(wait(all).value() == std::vector<std::size_t>{2});
  from_c.close();
  CHECK(wait(all, 0s).value() == std::vector<std::size_t>{2});
  a.put(1).value();
  CHECK(wait(all, 0s).value() == std::vector<std::size_t>{0, 2});
}

TEST_CASE("close frees a name while another thread is in wait") {
  const std::string name = "wait-closed-" + std::to_string(getpid());
  std::vector<std::pair<Sender, Receiver>> pairs;
  std::vector<Receiver> receivers;
  for (int i = 0; i < 6; ++i) {
    pairs.push_back(i == 0 ? make_pair({.name = name}) : make_pair({.arena = new_arena()}));
    receivers.push_back(pairs.back().second);
  }
  std::vector<std::size_t> ready;
  std::thread waiting([&] { ready = wait(receivers, 60s).value(); });
  auto [sender, receiver] = make_pair({.name = name + "-2"});
  sender.close();
  receiver.close();
  CHECK(open_sender(name + "-2").code() == Code::kNotFound);
  pairs[0].first.close();
  pairs[0].second.close();
  waiting.join();
  CHECK(ready == std::vector<std::size_t>{0});
  CHECK(open_sender(name).code() == Code::kNotFound);
}

TEST_CASE("stats do not count deliveries of a killed process") {
  auto [sender, receiver] = make_pair({.arena = new_arena()});
  sender.put(1).value();
  Child child([&, from = receiver] {
    const TakenItem taken = from.take().value();
    kill(getpid(), SIGKILL);
    return true;
  });
  CHECK_FALSE(child.succeeded());
  CHECK(sender.stats().value().taken == 0);
  CHECK(receiver.get(0s).value().as<int>() == 1);
}

TEST_CASE("wait wakes on a message of another process") {
  auto [a, from_a] = make_pair({.arena = new_arena()});
  auto [b, from_b] = make_pair({.arena = new_arena()});
  const std::vector<Receiver> both{from_a, from_b};
  b.put(0).value();  // now this process counts as a sender
  from_b.get().value();
  Child child([&, to = b] {
    usleep(20'000);
    return to.put(1).ok();
  });
  CHECK(wait(both, 60s).value() == std::vector<std::size_t>{1});
  CHECK(child.succeeded());
}
