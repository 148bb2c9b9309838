#include <chrono>

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
