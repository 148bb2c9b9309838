// Byte ranges and structs as messages, copied or loaned.
#include <bit>
#include <chrono>
#include <cstring>
#include <thread>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Child;

namespace {

struct Pose {
  double x = 0, y = 0;
  std::int32_t id = -1;
};
struct alignas(64) Image {
  std::uint32_t width = 0, height = 0;
  std::uint8_t pixels[100'000];
};

std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

Arena new_arena() {
  return Arena::create({.max_bytes = 16 << 20}).value();
}

}  // namespace

TEST_CASE("put_bytes delivers bytes of every size aligned") {
  auto [sender, receiver] = make_pair({.arena = new_arena()});
  for (const std::size_t count : {0u, 1u, 8u, 255u, 1'000u, 1'100u, 1'200u, 5'000u, 16'384u, 16'385u, 1'000'000u}) {
    INFO(count << " bytes");
    const auto bytes = some_bytes(count);
    sender.put_bytes(bytes).value();
    const FlatItem got = receiver.get_bytes().value();
    CHECK(std::ranges::equal(got.bytes(), bytes));
    CHECK(std::bit_cast<std::uintptr_t>(got.bytes().data()) % 64 == 0);
  }
}

TEST_CASE("bytes can be received as items and byte items as bytes") {
  auto [sender, receiver] = make_pair({.arena = new_arena()});
  for (const std::size_t count : {0u, 10u, 1'000u, 50'000u}) {
    const auto bytes = some_bytes(count);
    sender.put_bytes(bytes).value();
    CHECK(std::ranges::equal(receiver.get().value().as<std::span<const std::byte>>(), bytes));
    sender.put(Bytes{std::string(count, 'x')}).value();
    CHECK(receiver.get_bytes().value().size() == count);
    sender.put(std::span<const std::byte>(bytes)).value();  // an array of uint8
    CHECK(std::ranges::equal(receiver.get_bytes().value().bytes(), bytes));
  }
}

TEST_CASE("a struct arrives unchanged as a copy or in place") {
  auto [sender, receiver] = make_pair({.arena = new_arena()});
  sender.put_struct(Pose{1, 2, 3}).value();
  const Pose pose = receiver.get_struct<Pose>().value();
  CHECK((pose.x == 1 && pose.y == 2 && pose.id == 3));
  const auto image = std::make_unique<Image>();
  image->width = 640;
  image->pixels[99'999] = 7;
  sender.put_struct(*image).value();
  const FlatItem got = receiver.get_bytes().value();
  CHECK(got.as<Image>().width == 640);
  CHECK(got.as<Image>().pixels[99'999] == 7);
}

// guarantee: cpp-loans
TEST_CASE("an error for a wrong size or kind names both and the ticket") {
  auto [sender, receiver] = make_pair({.arena = new_arena()});
  sender.put_struct(std::int32_t{5}).value();
  const auto smaller = receiver.get_struct<Pose>();
  REQUIRE(smaller.code() == Code::kInvalid);
  CHECK(smaller.error().message == "message 0: The message has 4 bytes, but the requested struct has 24.");
  sender.put(Dict{{"a", 1}}).value();
  const auto other = receiver.get_bytes();
  REQUIRE(other.code() == Code::kInvalid);
  CHECK(other.error().message == "message 1: expected bytes, found dict");
  CHECK(other.error().ticket == 1);
  CHECK(receiver.empty());
  sender.put_struct(std::int32_t{5}).value();
  const FlatItem item = receiver.get_bytes().value();
  CHECK_THROWS_AS(item.as<Pose>(), BadResult);
}

// guarantee: cpp-loans
TEST_CASE("a loan is received in place and is empty after put") {
  const Arena arena = new_arena();
  auto [sender, receiver] = make_pair({.arena = arena});
  const std::uint64_t before = arena.usage().used_bytes;
  {
    Loaned<Image> loan = sender.loan<Image>().value();
    CHECK(loan->width == 0);  // the default of Image()
    loan->width = 320;
    const Image* place = &*loan;
    sender.put(std::move(loan)).value();
    CHECK_FALSE(loan);  // NOLINT(bugprone-use-after-move)
    CHECK(sender.put(std::move(loan)).code() == Code::kInvalid);
    const FlatItem got = receiver.get_bytes().value();
    CHECK(&got.as<Image>() == place);
    CHECK(got.as<Image>().width == 320);
  }
  CHECK(arena.usage().used_bytes == before);
}

TEST_CASE("loaned bytes are sent or freed and bad sizes are refused") {
  const Arena arena = new_arena();
  auto [sender, receiver] = make_pair({.arena = arena});
  const std::uint64_t before = arena.usage().used_bytes;
  LoanedBytes loan = sender.loan_bytes(100'000).value();
  CHECK(loan.bytes().size() == 100'000);
  std::memset(loan.bytes().data(), 3, 100'000);
  sender.put(std::move(loan)).value();
  CHECK(receiver.get().value().as<std::vector<unsigned char>>()[99'999] == 3);
  CHECK(sender.loan_bytes(0).code() == Code::kInvalid);
  CHECK(sender.loan_bytes(SIZE_MAX).code() == Code::kMessageTooLarge);
  CHECK(sender.loan_bytes(64 << 20).code() == Code::kMessageTooLarge);
  {
    const LoanedBytes unused = sender.loan_bytes(1'000).value();
    CHECK(arena.usage().used_bytes > before);
  }
  CHECK(arena.usage().used_bytes == before);
}

TEST_CASE("a loan survives a failed put and the next put sends it") {
  auto [sender, receiver] = make_pair({.capacity = 1, .arena = new_arena()});
  sender.put(0).value();
  receiver.get().value();
  sender.put("full").value();
  Loaned<Pose> loan = sender.loan<Pose>().value();
  loan->id = 9;
  CHECK(sender.put(std::move(loan), 0s).code() == Code::kFull);
  REQUIRE(loan);  // NOLINT(bugprone-use-after-move)
  receiver.get().value();
  sender.put(std::move(loan), 0s).value();
  CHECK(receiver.get_struct<Pose>().value().id == 9);
}

// guarantee: cpp-loans
TEST_CASE("put refuses loans of another arena or the parent process") {
  auto [sender, receiver] = make_pair({.arena = new_arena()});
  auto [other_sender, other_receiver] = make_pair({.arena = new_arena()});
  Loaned<Pose> loan = sender.loan<Pose>().value();
  CHECK(other_sender.put(std::move(loan)).code() == Code::kInvalid);
  Child child([&, to = sender] { return to.put(std::move(loan), 0s).code() == Code::kInvalid; });
  CHECK(child.succeeded());
  sender.put(std::move(loan)).value();
  CHECK(receiver.get_struct<Pose>().value().id == -1);
}

TEST_CASE("a loan outlives its sender") {
  const Arena arena = new_arena();
  auto [sender, receiver] = make_pair({.arena = arena});
  const std::uint64_t before = arena.usage().used_bytes;
  {
    Loaned<Pose> loan = sender.loan<Pose>().value();
    sender.close();
    loan->x = 1;
    CHECK(sender.put(std::move(loan)).code() == Code::kClosed);
  }
  CHECK(arena.usage().used_bytes <= before);
}

TEST_CASE("byte and struct calls return flow conditions as results") {
  auto [sender, receiver] = make_pair({.capacity = 1, .arena = new_arena()});
  CHECK(receiver.get_bytes(0s).code() == Code::kEmpty);
  CHECK(receiver.get_struct<Pose>(0s).code() == Code::kEmpty);
  sender.put_bytes({}).value();
  CHECK(sender.put_struct(Pose{}, 0s).code() == Code::kFull);
  CHECK(sender.put_bytes(some_bytes(5'000), 0s).code() == Code::kFull);
  std::stop_source stop;
  stop.request_stop();
  CHECK(sender.put_struct(Pose{}, std::nullopt, stop.get_token()).code() == Code::kInterrupted);
  CHECK(receiver.get_bytes().value().size() == 0);
  CHECK(receiver.get_bytes(std::nullopt, stop.get_token()).code() == Code::kInterrupted);
  sender.close();
  CHECK(receiver.get_struct<Pose>().code() == Code::kClosed);
  CHECK(sender.put_bytes({}).code() == Code::kClosed);
}

TEST_CASE("get_structs waits for one struct and takes all queued ones") {
  auto [sender, receiver] = make_pair({.capacity = 0, .arena = new_arena()});
  std::vector<std::uint64_t> numbers(300), got(100);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  sender.put_structs<std::uint64_t>(numbers).value();
  for (std::size_t first = 0; first < numbers.size(); first += got.size()) {
    REQUIRE(receiver.get_structs<std::uint64_t>(got).value() == got.size());
    CHECK(std::ranges::equal(got, std::span(numbers).subspan(first, got.size())));
  }
  CHECK(receiver.get_structs<std::uint64_t>(got, 0s).code() == Code::kEmpty);
  sender.put_struct(std::uint64_t{7}).value();
  CHECK(receiver.get_structs<std::uint64_t>(got).value() == 1);
  CHECK(got[0] == 7);
  CHECK(receiver.get_structs(std::span<std::uint64_t>()).code() == Code::kInvalid);
}

TEST_CASE("get_structs leaves a message of another kind in the channel") {
  auto [sender, receiver] = make_pair({.capacity = 0, .arena = new_arena()});
  const auto longer = some_bytes(9), large = some_bytes(100'000);
  std::vector<std::uint64_t> got(10);
  const auto put_number = [&](std::uint64_t number) { sender.put_struct(number).value(); };
  put_number(1);
  sender.put_bytes(longer).value();
  put_number(2);
  sender.put(Dict{{"key", 1}}).value();
  put_number(3);
  sender.put_bytes(large).value();
  CHECK(receiver.get_structs<std::uint64_t>(got).value() == 1);
  CHECK(receiver.get_structs<std::uint64_t>(got).code() == Code::kInvalid);  // consumes the longer one
  CHECK(receiver.get_structs<std::uint64_t>(got).value() == 1);
  CHECK(receiver.get().value()["key"].as<int>() == 1);
  CHECK(receiver.get_structs<std::uint64_t>(got).value() == 1);
  CHECK(got[0] == 3);
  CHECK(std::ranges::equal(receiver.get_bytes().value().bytes(), large));
}

TEST_CASE("get_structs receives returned messages in ticket order") {
  auto [sender, receiver] = make_pair({.capacity = 0, .arena = new_arena()});
  const std::uint64_t numbers[] = {0, 1, 2, 3};
  sender.put_structs<std::uint64_t>(numbers).value();
  TakenBytes first = receiver.take_bytes().value(), second = receiver.take_bytes().value();
  first.nack().value();
  second.nack().value();
  std::vector<std::uint64_t> all, got(4);
  while (all.size() < 4) {
    const std::size_t count = receiver.get_structs<std::uint64_t>(got, 0s).value();
    all.insert(all.end(), got.begin(), got.begin() + static_cast<std::ptrdiff_t>(count));
  }
  CHECK(all == std::vector<std::uint64_t>{0, 1, 2, 3});
}

TEST_CASE("put_structs and put_many_bytes report how many they put") {
  auto [sender, receiver] = make_pair({.capacity = 4, .arena = new_arena()});
  const std::uint64_t numbers[6] = {};
  const Status structs = sender.put_structs<std::uint64_t>(numbers, 0s);
  REQUIRE(structs.code() == Code::kFull);
  CHECK(structs.error().completed == 4);
  CHECK(receiver.get_many_bytes(10).value().size() == 4);
  const auto large = some_bytes(100'000), small = some_bytes(10);
  const std::span<const std::byte> runs[] = {small, large, small, {}, small};
  const Status bytes = sender.put_many_bytes(runs, 0s);
  REQUIRE(bytes.code() == Code::kFull);
  CHECK(bytes.error().completed == 4);
  const std::vector<FlatItem> got = receiver.get_many_bytes(10).value();
  REQUIRE(got.size() == 4);
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::ranges::equal(got[i].bytes(), runs[i]));
  CHECK(receiver.get_many_bytes(0).code() == Code::kInvalid);
}

TEST_CASE("a batch of receipts wakes every sender that waits for space") {
  auto [sender, receiver] = make_pair({.capacity = 4, .arena = new_arena()});
  constexpr std::uint64_t kEach = 500, kSenders = 3;
  std::vector<std::jthread> threads;
  for (std::uint64_t i = 0; i < kSenders; ++i) {
    threads.emplace_back([sender = sender, i] {
      for (std::uint64_t n = 0; n < kEach; ++n) sender.put_struct(i * kEach + n, 60s).value();
    });
  }
  std::vector<std::uint64_t> next(kSenders), got(4);
  for (std::uint64_t left = kEach * kSenders; left != 0;) {
    const std::size_t count = receiver.get_structs<std::uint64_t>(got, 60s).value();
    for (std::size_t i = 0; i < count; ++i) REQUIRE(got[i] % kEach == next[got[i] / kEach]++);
    left -= count;
  }
}
