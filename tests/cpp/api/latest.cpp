// The C++ API of Latest: the newest version of a value.
#include <unistd.h>

#include <chrono>
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
using shmtree::test::Gate;

namespace {

Latest new_latest(std::uint64_t history = 0) {
  return make_latest({.arena = Arena::create({.max_bytes = 16 << 20}).value(), .history = history});
}
Value weights(int number) {
  return Dict{{"number", number}, {"big", std::vector<int>(10'000, number)}};
}

}  // namespace

TEST_CASE("braces around entries publish a dict") {
  const Latest latest = new_latest();
  latest.publish({{"a", 3}}).value();
  CHECK(latest.get().value().value["a"].as<int>() == 3);
}

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
  const NewArray array = latest.new_array(DType::kInt32, {100'000}).value();
  latest.publish(array).value();
  latest.publish(0).value();
  CHECK(latest.stats().value().bytes < 10'000);  // the array was not copied
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
