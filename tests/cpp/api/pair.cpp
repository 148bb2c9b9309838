#include <chrono>
#include <thread>

#include "shmtree/array.h"
#include "shmtree/shmtree.h"
#include "support/catch2.h"

using namespace std::chrono_literals;
using shmtree::Code;

TEST_CASE("a nested value arrives as a tree with array views") {
  auto [sender, receiver] = shmtree::make_pair({.capacity = 8});
  xt::xarray<float> obs = xt::ones<float>({84, 84});
  sender.put(shmtree::Dict{{"obs", obs}, {"reward", 1.5}, {"info", shmtree::Dict{{"episode", "ep-12"}}}}, 30s).value();
  obs.fill(0.0F);  // the message is a copy

  const shmtree::Item item = receiver.get(30s).value();

  auto view = item["obs"].array<float>();
  CHECK(view.shape(0) == 84);
  CHECK(xt::sum(view)() == 84 * 84);
  CHECK(item["reward"].as<double>() == 1.5);
  CHECK(item["info"]["episode"].as<std::string>() == "ep-12");
}

TEST_CASE("braces around entries put a dict") {
  auto [sender, receiver] = shmtree::make_pair();
  sender.put({{"a", 1}}).value();
  sender.put({{"a", 1}, {"b", "two"}}, 0s).value();
  CHECK(receiver.get().value().as<std::map<std::string, int>>() == std::map<std::string, int>{{"a", 1}});
  CHECK(receiver.get().value()["b"].as<std::string>() == "two");
}

TEST_CASE("get_many waits within for more messages") {
  const auto check = [](const auto& sender, const auto& receiver, auto put) {
    put(sender, 1);
    std::jthread later([&] {
      while (receiver.size() != 0) std::this_thread::yield();
      put(sender, 2);
    });
    CHECK(receiver.get_many(2, 60s, 60s).value().size() == 2);
    put(sender, 3);
    CHECK(receiver.get_many(2, 60s, 1ms).value().size() == 1);
  };
  const auto put = [](const auto& sender, int value) { sender.put(value).value(); };
  auto [sender, receiver] = shmtree::make_pair();
  check(sender, receiver, put);
  const auto queue = shmtree::make_queue();
  check(queue, queue, put);
  const auto broadcast = shmtree::make_broadcast({.capacity = 4});
  check(broadcast, broadcast.subscribe().value(), put);
}

TEST_CASE("put refuses a message larger than the budget at once") {
  auto arena = shmtree::Arena::create({.max_bytes = 2 << 20}).value();
  auto [sender, receiver] = shmtree::make_pair({.arena = arena});
  const std::vector<double> big(1 << 20);
  const auto refused = sender.put(big);
  REQUIRE(refused.code() == Code::kMessageTooLarge);
  CHECK(refused.error().message.find("2097152") != std::string::npos);
  sender.put(1).value();
  CHECK(receiver.get(30s).value().as<int>() == 1);
}

// guarantee: referenced-bytes
TEST_CASE("max_bytes and queued_bytes count referenced arrays") {
  using namespace shmtree;
  constexpr std::int64_t kCount = 50'000;
  const Arena arena = Arena::create({.max_bytes = 16 << 20}).value();
  auto [sender, receiver] = make_pair({.capacity = 0, .max_bytes = 3 * kCount, .arena = arena});
  auto [on, last] = make_pair({.capacity = 0, .max_bytes = 3 * kCount, .arena = arena});
  for (int i = 0; i < 2; ++i) sender.put(arena.new_array(DType::kUInt8, {kCount}).value()).value();
  CHECK(sender.stats().value().queued_bytes >= 2 * kCount);
  CHECK(sender.put(arena.new_array(DType::kUInt8, {kCount}).value(), 0s).code() == Code::kFull);
  for (int i = 0; i < 2; ++i) on.put(receiver.get().value()).value();  // forwarded
  CHECK(sender.stats().value().queued_bytes == 0);
  CHECK(on.stats().value().queued_bytes >= 2 * kCount);
  CHECK(on.put(arena.new_array(DType::kUInt8, {kCount}).value(), 0s).code() == Code::kFull);
  for (int i = 0; i < 2; ++i) CHECK(last.get().value().view().elements == kCount);
  CHECK(on.stats().value().queued_bytes == 0);
}

TEST_CASE("a message that reached max_attempts is a dead letter") {
  auto [sender, receiver] = shmtree::make_pair({.max_unacked = 1, .max_attempts = 2});
  const std::uint64_t ticket = sender.put("poison").value();
  for (std::uint32_t attempt = 1; attempt <= 2; ++attempt) {
    const auto taken = receiver.take(0s).value();
    CHECK(taken.attempts() == attempt);
    CHECK(taken.ticket() == ticket);
    CHECK(taken.redelivered() == (attempt > 1));
    CHECK(receiver.take(0s).code() == Code::kEmpty);  // at most one unacked message
    CHECK(sender.flush(0s).code() == Code::kTimeout);
  }
  sender.flush(0s).value();
  auto given_up = receiver.dead_letters().value();
  REQUIRE(given_up.size() == 1);
  CHECK(given_up[0].item().as<std::string>() == "poison");
  CHECK(given_up[0].ticket() == ticket);
  given_up[0].requeue().value();
  CHECK(receiver.take(0s).value().attempts() == 1);
}
