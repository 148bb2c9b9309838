// Programs that keep all messages that they receive do not block the senders.
#include <chrono>
#include <cstring>
#include <span>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/catch2.h"

using namespace std::chrono_literals;
using namespace shmtree;

namespace {

constexpr std::size_t kCount = 1 << 20, kMessages = 100;

Arena new_arena() {
  return Arena::create({.max_bytes = 64 << 20}).value();
}
std::vector<std::uint8_t> message(std::size_t i) {
  return std::vector<std::uint8_t>(kCount, static_cast<std::uint8_t>(i));
}
// Puts values and keeps the results of `get`. Checks that all are what was put.
template <class Put, class Get>
void put_and_keep(Put put, Get get) {
  std::vector<Item> kept;
  for (std::size_t i = 0; i < kMessages; ++i) {
    CAPTURE(i);
    put(i);
    kept.push_back(get());
  }
  for (std::size_t i = 0; i < kMessages; ++i) {
    const auto bytes = kept[i].span<const std::uint8_t>();
    REQUIRE(bytes.size() == kCount);
    REQUIRE((bytes.front() == i && bytes.back() == i));
  }
}

}  // namespace

TEST_CASE("a receiver can keep more items than the arena holds") {
  auto [sender, receiver] = make_pair({.arena = new_arena()});
  put_and_keep([&](std::size_t i) { sender.put(Value(message(i)), 10s).value(); },
               [&] { return receiver.get(10s).value(); });
}

// guarantee: hoarding
TEST_CASE("a receiver can keep more loaned arrays than the arena holds") {
  const Arena arena = new_arena();
  auto [sender, receiver] = make_pair({.arena = arena});
  put_and_keep(
      [&](std::size_t i) {
        const NewArray array = sender.new_array(DType::kUInt8, {kCount}, 10s).value();
        std::memset(array.mutable_data(), static_cast<int>(i), kCount);
        sender.put(Value(array), 10s).value();
      },
      [&] { return receiver.get(10s).value(); });
}

// guarantee: hoarding
TEST_CASE("a subscriber can keep more items than the arena holds") {
  const OnLag on_lag = GENERATE(OnLag::kBlock, OnLag::kSkip, OnLag::kLatest, OnLag::kRaise);
  const Broadcast broadcast = make_broadcast({.capacity = 4, .arena = new_arena()});
  const Subscriber subscriber = broadcast.subscribe({.on_lag = on_lag}).value();
  put_and_keep([&](std::size_t i) { broadcast.put(Value(message(i)), 10s).value(); },
               [&] { return subscriber.get(10s).value(); });
}

TEST_CASE("a subscriber can keep more bytes than the arena holds") {
  const Broadcast broadcast = make_broadcast({.capacity = 4, .arena = new_arena()});
  const Subscriber subscriber = broadcast.subscribe({.on_lag = OnLag::kSkip}).value();
  std::vector<FlatItem> kept;
  for (std::size_t i = 0; i < kMessages; ++i) {
    CAPTURE(i);
    const auto bytes = message(i);
    broadcast.put_bytes(std::as_bytes(std::span(bytes)), 10s).value();
    kept.push_back(subscriber.get_bytes(10s).value());
    REQUIRE(kept.back().size() == kCount);
  }
  for (std::size_t i = 0; i < kMessages; ++i) REQUIRE(kept[i].bytes()[kCount - 1] == static_cast<std::byte>(i));
}

// guarantee: hoarding
TEST_CASE("a reader of Latest can keep more items than the arena holds") {
  const Latest latest = make_latest({.arena = new_arena()});
  std::uint64_t seen = 0;
  put_and_keep([&](std::size_t i) { latest.publish(Value(message(i)), 10s).value(); },
               [&] {
                 Version version = latest.get(seen, 10s).value();
                 seen = version.version;
                 return version.value;
               });
}

TEST_CASE("Broadcast history does not count as held by subscribers") {
  const Broadcast broadcast = make_broadcast({.capacity = 50, .history = 50, .arena = new_arena()});
  const Subscriber subscriber = broadcast.subscribe({.on_lag = OnLag::kSkip}).value();
  for (std::size_t i = 0; i < 45; ++i) broadcast.put(Value(message(i)), 10s).value();
  const Item item = subscriber.get(10s).value();
  const Item same = broadcast.subscribe({.start = StartAt::kOldest}).value().get(10s).value();
  CHECK(item.span<const std::uint8_t>().data() == same.span<const std::uint8_t>().data());
}
