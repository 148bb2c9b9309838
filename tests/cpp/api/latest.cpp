// The C++ API of Latest: the newest version of a value.
#include <unistd.h>

#include <chrono>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/caller.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Caller;
using shmtree::test::Child;
using shmtree::test::Gate;

namespace {

Latest new_latest(std::uint64_t history = 0) {
  return make_latest({.arena = Arena::create({.max_bytes = 16 << 20}).value(), .history = history});
}
Value weights(int number) {
  return Dict{{"number", number}, {"big", std::vector<int>(10'000, number)}};
}

}  // namespace

TEST_CASE("Latest returns the newest version and the kept history") {
  const Latest latest = new_latest(1);
  CHECK(latest.version() == 0);
  CHECK(latest.get(0, 0s).code() == Code::kEmpty);
  for (int i = 1; i <= 5; ++i) CHECK(latest.publish(weights(i)).value() == static_cast<std::uint64_t>(i));
  const Version newest = latest.get().value();
  CHECK((newest.version == 5 && newest.value["number"].as<int>() == 5));
  CHECK(latest.at(4).value().value["number"].as<int>() == 4);
  CHECK(latest.at(3).code() == Code::kNotFound);
  CHECK(latest.get(5, 10ms).code() == Code::kEmpty);
  CHECK((latest.history() == 1 && latest.stats().value().versions == 2));
  CHECK(latest.stats().value().publishers == std::vector<int>{getpid()});
}

TEST_CASE("arrays of a version are read-only and never change") {
  const Latest latest = new_latest();
  latest.publish(weights(7)).value();
  const Version kept = latest.get().value();
  CHECK(kept.value["big"].view().read_only);
  CHECK_FALSE(kept.value["big"].span<const int>().empty());
  CHECK_THROWS_AS(kept.value["big"].span<int>(), BadResult);
  for (int i = 0; i < 50; ++i) latest.publish(weights(i)).value();
  for (const int each : kept.value["big"].span<const int>()) REQUIRE(each == 7);
}

TEST_CASE("an array made in place is published without a copy") {
  const Latest latest = new_latest();
  const NewArray array = latest.new_array(DType::kInt32, {100'000}).value();
  const std::span<int> elements = array.span<int>();
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<int>(i);
  latest.publish(Dict{{"array", array}}).value();
  const Version newest = latest.get().value();
  CHECK(newest.value["array"].span<const int>()[99'999] == 99'999);
  CHECK(newest.value["array"].view().read_only);
  CHECK(latest.stats().value().bytes < 10'000);
}

TEST_CASE("another process publishes to a Latest by handle or name") {
  const std::string name = "test-latest-" + std::to_string(getpid());
  Latest latest = make_latest({.name = name});
  latest.publish(1).value();
  const std::string handle = latest.handle().value();
  Child child([&] {
    const Latest by_handle = Latest::open(handle).value(), by_name = open_latest(name).value();
    return by_handle.get(0, 20s).value().value.as<int>() == 1 && by_name.publish("second").value() == 2;
  });
  REQUIRE(child.succeeded());
  CHECK(latest.get(1, 20s).value().value.as<std::string>() == "second");
  CHECK(open_sender(name).code() == Code::kInvalid);
  CHECK_THROWS_AS(make_latest({.name = name}), BadResult);
  latest.close();
  CHECK(open_latest(name).code() == Code::kNotFound);
  CHECK(Latest::open("0").code() == Code::kInvalid);
}

TEST_CASE("a wait for a version ends on publish or close or stop") {
  Latest latest = new_latest();
  const Latest other = Latest::open(latest.handle().value()).value();
  latest.publish(1).value();
  std::atomic<Code> told{Code::kOs};
  {
    Caller stopped([&](const std::stop_token& stop) { told = other.get(1, std::nullopt, stop).code(); });
    stopped.stop();
  }
  CHECK(told == Code::kInterrupted);
  {
    Caller closed([&](const std::stop_token&) { told = latest.get(1).code(); });
    latest.close();
  }
  CHECK(told == Code::kClosed);
  CHECK(latest.closed());
  CHECK(latest.publish(2).code() == Code::kClosed);
  Caller newer([&](const std::stop_token&) { told = other.get(1).ok() ? Code::kExists : Code::kOs; });
  other.publish(2).value();
  newer.join();
  CHECK(told == Code::kExists);
}

TEST_CASE("get reports that the publishers were killed") {
  const Latest latest = new_latest();
  const std::string handle = latest.handle().value();
  Child killed([&] {
    Latest::open(handle).value().publish("last words").value();
    return kill(getpid(), SIGKILL) == 0;
  });
  CHECK_FALSE(killed.succeeded());
  CHECK(latest.get(0, 20s).value().value.as<std::string>() == "last words");
  const auto died = latest.get(1, 20s);
  CHECK(died.code() == Code::kPeerDied);
  CHECK(died.error().pids == std::vector<int>{killed.pid()});
  Child leaves([&] { return Latest::open(handle).value().publish(2).ok(); });
  CHECK(leaves.succeeded());
}

// guarantee: latest-dead-publisher
TEST_CASE("get reports a maker that was killed before it published") {
  const std::string name = "api-latest-maker-" + std::to_string(getpid());
  const Gate opened;
  Child maker([&] {
    const Latest made = make_latest({.name = name});
    opened.wait();
    return kill(getpid(), SIGKILL) == 0;
  });
  const Latest latest = open_latest(name, 60s).value();
  std::vector<int> died;
  Caller reader([&](const std::stop_token&) { died = latest.get(0, 60s).error().pids; });
  opened.open();
  reader.join();
  CHECK(died == std::vector<int>{maker.pid()});
  CHECK(latest.get(0, 0s).code() == Code::kPeerDied);
  latest.publish(1).value();
  CHECK(latest.get(0, 0s).ok());
}

// guarantee: latest-dead-publisher
TEST_CASE("get ends when the maker closed before it published") {
  Latest made = new_latest();
  const std::string handle = made.handle().value();
  const Gate begun;
  const auto ends = [&] {
    const Latest latest = Latest::open(handle).value();
    made.close();  // the child's copy
    begun.open();
    return latest.get(0, 60s).code() == Code::kClosed;
  };
  Child reader(ends), other(ends);
  begun.wait();
  begun.wait();
  made.close();
  CHECK(reader.succeeded());
  CHECK(other.succeeded());
}

TEST_CASE("get waits for a process that can still publish first") {
  Latest made = new_latest();
  const Gate go;
  Child publishes([&] {
    go.wait();
    return made.publish(1).ok();
  });
  const Latest latest = Latest::open(made.handle().value()).value();
  Child killed([&] { return kill(getpid(), SIGKILL) == 0; });
  CHECK(killed.was_killed());
  made.close();
  CHECK(latest.get(0, 300ms).code() == Code::kEmpty);
  go.open();
  CHECK(latest.get(0, 60s).value().value.as<int>() == 1);
  CHECK(publishes.succeeded());
}

TEST_CASE("make_latest opens an existing Latest with equal options") {
  LatestOptions options{.name = "api-latest-exists-" + std::to_string(::getpid()), .history = 3};
  const Latest made = make_latest(options);
  REQUIRE(made.publish(Value(7), 60s).ok());
  CHECK_THROWS_AS(make_latest(options), BadResult);
  options.exist_ok = true;
  CHECK(make_latest(options).version() == 1);
  options.history = 4;
  try {
    make_latest(options);
    FAIL("made with other options");
  } catch (const BadResult& refused) {
    CHECK(refused.error().code == Code::kInvalid);
    CHECK(refused.error().message.find("history 3, not 4") != std::string::npos);
  }
}

TEST_CASE("open_latest waits for the name until its timeout") {
  const std::string name = "api-latest-waited-" + std::to_string(::getpid());
  CHECK(open_latest(name).code() == Code::kNotFound);
  CHECK(open_latest(name, 1ms).code() == Code::kTimeout);
  bool is_open = false;
  std::thread opener([&] { is_open = open_latest(name, 60s).ok(); });
  const Latest made = make_latest({.name = name});
  opener.join();
  CHECK(is_open);
}
