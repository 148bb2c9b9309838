// Bytes and structs that are taken and redelivered, and bytes that are forwarded.
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Child;

namespace {

struct Pose {
  double x = 0, y = 0;
};
struct Image {
  std::uint32_t width = 0;
  std::uint8_t pixels[100'000];
};

constexpr std::size_t kLarge = 100'000;  // more than the size up to which messages are copied out

struct Stages {
  Arena arena = Arena::create({.max_bytes = 64 << 20}).value();
  std::pair<Sender, Receiver> first = make_pair({.arena = arena});
  std::pair<Sender, Receiver> second = make_pair({.capacity = 1, .arena = arena});
  FlatItem get(std::size_t count = kLarge) {
    first.first.put_bytes(std::vector<std::byte>(count, std::byte{7})).value();
    return first.second.get_bytes().value();
  }
};

bool is_seven(const FlatItem& item, std::size_t count = kLarge) {
  return std::ranges::equal(item.bytes(), std::vector<std::byte>(count, std::byte{7}));
}

}  // namespace

// guarantee: cpp-taken-bytes
TEST_CASE("bytes and structs and loans can be taken and acked") {
  auto [sender, receiver] = make_pair({.arena = Arena::create({.max_bytes = 16 << 20}).value()});
  sender.put_bytes(std::vector<std::byte>(kLarge, std::byte{7})).value();
  sender.put_struct(Pose{1, 2}).value();
  auto loan = sender.loan<Image>().value();
  loan->pixels[99'999] = 9;
  const Image* place = &*loan;
  sender.put(std::move(loan)).value();
  TakenBytes bytes = receiver.take_bytes().value();
  TakenBytes pose = receiver.take_bytes().value();
  TakenBytes image = receiver.take_bytes().value();
  CHECK(is_seven(bytes.item()));
  CHECK(pose.item().as<Pose>().y == 2);
  CHECK((&image.item().as<Image>() == place && place->pixels[99'999] == 9));
  CHECK((bytes.ticket() == 0 && image.ticket() == 2 && image.attempts() == 1 && !image.redelivered()));
  CHECK(receiver.stats().value().taken == 3);
  for (TakenBytes* each : {&bytes, &pose, &image}) CHECK(each->ack().ok());
  CHECK(bytes.ack().code() == Code::kInvalid);
  CHECK(is_seven(bytes.item()));  // still pinned
  sender.wait_for_all_ack(0s).value();
}

// guarantee: cpp-taken-bytes
TEST_CASE("unacked bytes are redelivered after nack or drop or death") {
  auto [sender, receiver] = make_pair({.arena = Arena::create({.max_bytes = 16 << 20}).value()});
  sender.put_struct(Pose{3, 4}).value();
  receiver.take_bytes().value().nack().value();
  { const TakenBytes dropped = receiver.take_bytes().value(); }
  Child dies([&, from = receiver] { return from.take_bytes().ok() && kill(getpid(), SIGKILL) == 0; });
  CHECK_FALSE(dies.succeeded());
  TakenBytes again = receiver.take_bytes(30s).value();
  CHECK((again.redelivered() && again.attempts() == 4 && again.item().as<Pose>().x == 3));
  again.requeue().value();
  CHECK(receiver.take_bytes().value().attempts() == 1);  // requeue() resets the attempts
}

TEST_CASE("wrong kinds are consumed and moved-from TakenBytes are empty") {
  auto [sender, receiver] = make_pair();
  CHECK(receiver.take_bytes(0s).code() == Code::kEmpty);
  sender.put(Dict{{"a", 1}}).value();
  CHECK(receiver.take_bytes().code() == Code::kInvalid);
  CHECK((receiver.empty() && receiver.stats().value().taken == 0));
  sender.put("text").value();
  CHECK(receiver.take().value().item().as<std::string>() == "text");
  receiver.get().value();  // redelivered, because the delivery above was dropped
  sender.put_bytes({}).value();
  TakenBytes taken = receiver.take_bytes().value();
  TakenBytes to = std::move(taken);
  CHECK((taken.item().size() == 0 && taken.ack().code() == Code::kInvalid));  // NOLINT(bugprone-use-after-move)
  CHECK(to.ack().ok());
}

// guarantee: cpp-forwarding
TEST_CASE("forwarding moves bytes unless another FlatItem pins them") {
  Stages stages;
  FlatItem item = stages.get();
  const std::byte* place = item.bytes().data();
  for (int i = 0; i < 3; ++i) {
    stages.second.first.put(std::move(item)).value();
    CHECK(item.size() == 0);  // NOLINT(bugprone-use-after-move)
    item = stages.second.second.get_bytes().value();
    CHECK((item.bytes().data() == place && is_seven(item)));
  }
  const FlatItem other = item;
  stages.second.first.put(std::move(item)).value();
  const FlatItem copy = stages.second.second.get_bytes().value();
  CHECK((copy.bytes().data() != place && is_seven(copy) && is_seven(other)));
}

TEST_CASE("put refuses moved-from bytes but accepts zero bytes") {
  Stages stages;
  FlatItem item = stages.get();
  stages.second.first.put(std::move(item)).value();
  stages.second.second.get_bytes().value();
  CHECK(stages.second.first.put(std::move(item), 0s).code() == Code::kInvalid);
  CHECK(stages.second.first.put(FlatItem(), 0s).code() == Code::kInvalid);
  CHECK(stages.second.second.size() == 0);
  FlatItem empty = stages.get(0);
  stages.second.first.put(std::move(empty)).value();
  CHECK(stages.second.second.get_bytes().value().size() == 0);
}

TEST_CASE("forwarded bytes of any length arrive as a uint8 array") {
  Stages stages;
  for (const std::size_t count : {std::size_t{0}, std::size_t{10}, kLarge}) {
    stages.second.first.put(stages.get(count)).value();
    const Item item = stages.second.second.get().value();
    CHECK((item.kind() == Kind::kArray && item.view().dtype == DType::kUInt8 && item.view().elements == count));
  }
  stages.first.first.put_struct(Pose{5, 6}).value();
  stages.second.first.put(stages.first.second.get_bytes().value()).value();
  CHECK(stages.second.second.get_struct<Pose>().value().y == 6);
}

// guarantee: cpp-taken-bytes
TEST_CASE("forwarding moves acked bytes and copies unacked ones") {
  Stages stages;
  stages.first.first.put_bytes(std::vector<std::byte>(kLarge, std::byte{7})).value();
  FlatItem item;
  const std::byte* place = nullptr;
  {
    TakenBytes taken = stages.first.second.take_bytes().value();
    item = taken.item();
    place = item.bytes().data();
  }
  stages.second.first.put(std::move(item)).value();
  CHECK(stages.second.second.get_bytes().value().bytes().data() != place);
  {
    TakenBytes taken = stages.first.second.take_bytes().value();
    item = taken.item();
    taken.ack().value();
  }
  stages.second.first.put(std::move(item)).value();
  CHECK(stages.second.second.get_bytes().value().bytes().data() == place);
}

// guarantee: cpp-forwarding
TEST_CASE("forwarding copies read-only or foreign or inherited bytes") {
  Stages stages;
  const std::vector<std::uint8_t> bytes(kLarge, 7);
  ArrayRef array = array_ref(bytes.data(), {kLarge});
  array.read_only = true;
  stages.first.first.put(std::move(array)).value();
  FlatItem seen = stages.first.second.get_bytes().value();
  const std::byte* place = seen.bytes().data();
  stages.second.first.put(std::move(seen)).value();
  CHECK(stages.second.second.get_bytes().value().bytes().data() != place);

  auto [sender, receiver] = make_pair({.arena = Arena::create({.max_bytes = 16 << 20}).value()});
  sender.put(stages.get()).value();
  CHECK(is_seven(receiver.get_bytes().value()));

  FlatItem item = stages.get();
  place = item.bytes().data();
  Child child([&, to = stages.second.first] { return to.put(std::move(item), 30s).ok(); });
  REQUIRE(child.succeeded());
  const FlatItem from_child = stages.second.second.get_bytes(30s).value();
  CHECK((from_child.bytes().data() != place && is_seven(from_child)));
  stages.second.first.put(std::move(item)).value();
  CHECK(stages.second.second.get_bytes().value().bytes().data() == place);
}

TEST_CASE("bytes survive a failed put and the last receiver frees them") {
  Stages stages;
  stages.second.first.put("first").value();
  stages.second.second.get().value();
  const std::uint64_t before = stages.arena.usage().used_bytes;
  stages.second.first.put("full").value();
  FlatItem item = stages.get();
  CHECK(stages.second.first.put(std::move(item), 0s).code() == Code::kFull);
  CHECK(is_seven(item));  // NOLINT(bugprone-use-after-move)
  stages.second.second.get().value();
  stages.second.first.put(std::move(item), 0s).value();
  CHECK(is_seven(stages.second.second.get_bytes().value()));
  CHECK(stages.arena.usage().used_bytes == before);
}
