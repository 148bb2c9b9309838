// Closing and a stop_token end the waits of a replay buffer's calls in C++, besides their deadline.
#include <unistd.h>

#include <functional>
#include <stop_token>
#include <thread>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/caller.h"
#include "support/catch2.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Caller;

namespace {

ReplayBuffer numbers(std::optional<ReplayRateLimit> limit = {}) {
  return make_replay(
      {.capacity = 100, .columns = {{"n"}}, .episodes = {.done = std::nullopt}, .limits = {.rate = limit}});
}
Dict row(int n) {
  return Dict{{"n", n}};
}
// Returns a buffer with a rate limit that blocks writers until a sampler has sampled.
ReplayBuffer full() {
  ReplayBuffer buffer = numbers(ReplayRateLimit{.samples_per_insert = 1, .min_size = 1, .error_buffer = 1});
  const ReplayWriter writer = buffer.writer().value();
  while (writer.add(row(0), 0s).ok()) {
  }
  return buffer;
}

}  // namespace

TEST_CASE("replay waits end on a stop request and work afterwards") {
  const ReplayBuffer empty = numbers(), taken = full();
  const ReplayWriter writer = taken.writer().value();
  const std::vector<std::int64_t> three{1, 2, 3};
  const std::vector<std::function<Code(const std::stop_token&)>> calls{
      [&](const std::stop_token& stop) { return empty.sample(1, {}, {}, stop).code(); },
      [&](const std::stop_token& stop) { return empty.sample_sequences(1, 2, {}, {}, stop).code(); },
      [&](const std::stop_token& stop) { return writer.add(row(1), {}, {}, stop).code(); },
      [&](const std::stop_token& stop) {
        return writer.extend(Dict{{"n", three}}, {}, {}, stop).code();
      },
  };
  for (const auto& call : calls) {
    Code told = Code::kOs;
    Caller waiting([&](const std::stop_token& stop) { told = call(stop); });
    waiting.stop();
    waiting.join();
    CHECK(told == Code::kInterrupted);
    std::stop_source source;
    source.request_stop();
    CHECK(call(source.get_token()) == Code::kInterrupted);
  }
  CHECK(empty.writer().value().add(row(1)).ok());
  CHECK(taken.sample(1, 60s).ok());
  CHECK(writer.add(row(2), 60s).ok());
}

TEST_CASE("stats name the processes that wait to sample or to add") {
  const ReplayBuffer empty = numbers(), taken = full();
  const ReplayWriter writer = taken.writer().value();
  CHECK(empty.stats().value().waiting_to_sample.empty());
  Caller drawing([&](const std::stop_token& stop) { empty.sample(1, {}, {}, stop).ok(); });
  Caller adding([&](const std::stop_token& stop) { writer.add(row(1), {}, {}, stop).ok(); });
  const auto until = [](const auto& there) {
    while (!there()) std::this_thread::sleep_for(1ms);
  };
  until([&] { return empty.stats().value().waiting_to_sample == std::vector{getpid()}; });
  until([&] { return taken.stats().value().waiting_to_add == std::vector{getpid()}; });
  CHECK(empty.stats().value().waiting_to_add.empty());
  CHECK(taken.stats().value().waiting_to_sample.empty());
  drawing.stop();
  adding.stop();
  drawing.join();
  adding.join();
  CHECK(empty.stats().value().waiting_to_sample.empty());
  CHECK(taken.stats().value().waiting_to_add.empty());
}

TEST_CASE("a replay call does nothing if a stop was requested before") {
  const ReplayBuffer buffer = numbers();
  const ReplayWriter writer = buffer.writer().value();
  const std::uint64_t rows = buffer.stats().value().rows;
  std::stop_source source;
  source.request_stop();
  CHECK(writer.add(row(1), {}, {}, source.get_token()).code() == Code::kInterrupted);
  CHECK(buffer.add(row(1), {}, {}, source.get_token()).code() == Code::kInterrupted);
  CHECK(buffer.sample(3, {}, {}, source.get_token()).code() == Code::kInterrupted);
  CHECK(buffer.clear({}, source.get_token()).code() == Code::kInterrupted);
  CHECK(buffer.stats().value().rows == rows);
  CHECK(writer.add(row(1)).ok());
}

TEST_CASE("closing a buffer ends its own writers and their waits") {
  ReplayBuffer buffer = full();
  const ReplayBuffer other = ReplayBuffer::open(buffer.handle().value()).value();
  const ReplayWriter idle = buffer.writer().value(), busy = buffer.writer().value(), stays = other.writer().value();
  Code told = Code::kOs;
  {
    Caller waiting([&](const std::stop_token&) { told = busy.add(row(1)).code(); });
    buffer.close();
  }
  CHECK(told == Code::kClosed);
  CHECK((idle.closed() && busy.closed() && !stays.closed()));
  CHECK((idle.add(row(1), 0s).code() == Code::kClosed && buffer.writer().code() == Code::kClosed));
  CHECK(other.sample(1, 60s).ok());
  CHECK(stays.add(row(1), 60s).ok());
}

TEST_CASE("closing a writer ends its blocked add") {
  const ReplayBuffer buffer = full();
  ReplayWriter writer = buffer.writer().value();
  Code told = Code::kOs;
  {
    Caller waiting([&](const std::stop_token&) { told = writer.add(row(1)).code(); });
    writer.close();
  }
  CHECK(told == Code::kClosed);
}
