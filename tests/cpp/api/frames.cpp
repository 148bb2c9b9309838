// Messages as frames: taken and put without decoding, packed and unpacked.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Child;
using shmtree::test::Gate;

namespace {

constexpr auto kPatience = 60s;

std::vector<double> some_numbers() {
  std::vector<double> numbers(20'000);
  std::iota(numbers.begin(), numbers.end(), 0.5);
  return numbers;
}

struct Ends {
  Arena arena = Arena::create({.max_bytes = 64 << 20}).value();
  std::pair<Sender, Receiver> first = make_pair({.capacity = 64, .arena = arena});
  std::pair<Sender, Receiver> second = make_pair({.capacity = 64, .arena = arena});
};

}  // namespace

TEST_CASE("take_frames and put_frame forward messages in order") {
  Ends ends;
  for (int i = 0; i < 10; ++i) {
    ends.first.first.put(Dict{{"n", i}, {"a", i % 2 == 0 ? std::vector<double>{} : some_numbers()}}).value();
  }
  auto frames = ends.first.second.take_frames(100).value();
  REQUIRE(frames.size() == 10);
  for (TakenFrame& taken : frames) {
    CHECK(taken.item().portable());
    ends.second.first.put_frame(taken.item()).value();
    taken.ack().value();
  }
  CHECK(ends.first.first.pending_acks() == 0);
  for (int i = 0; i < 10; ++i) {
    const Item item = ends.second.second.get().value();
    CHECK(item["n"].as<int>() == i);
    CHECK(item["a"].as<std::vector<double>>() == (i % 2 == 0 ? std::vector<double>{} : some_numbers()));
  }
}

TEST_CASE("a taken frame contains the bytes of new_array arrays") {
  Ends ends;
  const NewArray lent = ends.first.first.new_array(DType::kFloat64, {20'000}).value();
  const std::vector<double> numbers = some_numbers();
  std::memcpy(lent.mutable_data(), numbers.data(), numbers.size() * sizeof(double));
  ends.first.first.put(Dict{{"a", lent}, {"n", 1}}).value();
  const auto frames = ends.first.second.take_frames(1).value();
  CHECK(frames[0].item().bytes().size() > numbers.size() * sizeof(double));
  CHECK(unpack(frames[0].item()).value()["a"].as<std::vector<double>>() == numbers);
}

TEST_CASE("unacked frames are redelivered in order") {
  Ends ends;
  for (int i = 0; i < 3; ++i) ends.first.first.put(i).value();
  {
    auto frames = ends.first.second.take_frames(3).value();
    frames[1].ack().value();
  }
  auto again = ends.first.second.take_frames(3, kPatience).value();
  REQUIRE(again.size() == 2);
  CHECK(unpack(again[0].item()).value().as<int>() == 0);
  CHECK(unpack(again[1].item()).value().as<int>() == 2);
  CHECK(again[0].redelivered());
}

TEST_CASE("frames taken by a killed process are redelivered") {
  Ends ends;
  const auto& [sender, receiver] = ends.first;
  for (int i = 0; i < 3; ++i) sender.put(Dict{{"n", i}, {"a", some_numbers()}}).value();
  Gate taken;
  Child taker([&] {
    const auto frames = receiver.take_frames(2, kPatience);
    if (!frames.ok() || frames->size() != 2) return false;
    taken.open();
    pause();
    return true;
  });
  taken.wait();
  taker.kill_and_wait();
  std::vector<int> numbers;
  while (numbers.size() < 3) {
    auto frames = receiver.take_frames(3, kPatience).value();
    for (TakenFrame& each : frames) {
      numbers.push_back(unpack(each.item()).value()["n"].as<int>());
      each.ack().value();
    }
  }
  CHECK(numbers.size() == 3);
  CHECK(std::accumulate(numbers.begin(), numbers.end(), 0) == 3);
}

TEST_CASE("put_frame refuses invalid frames and puts nothing") {
  Ends ends;
  const auto& [sender, receiver] = ends.first;
  const Frame frame = pack(Dict{{"n", 1}, {"text", "x"}}).value();
  std::vector<std::byte> bytes(frame.bytes().begin(), frame.bytes().end());
  CHECK(sender.put_frame(std::span(bytes).first(bytes.size() - 1)).code() == Code::kCorrupt);
  CHECK(sender.put_frame(std::span<const std::byte>()).code() == Code::kCorrupt);
  CHECK(sender.put_frame(Frame()).code() == Code::kInvalid);
  bytes[14] = std::byte{9};
  CHECK(sender.put_frame(bytes).code() == Code::kIncompatible);
  CHECK(receiver.empty());
  bytes[14] = std::byte{2};
  bytes.push_back(std::byte{0xff});  // beyond the end of the frame
  sender.put_frame(bytes).value();
  CHECK(receiver.get().value()["n"].as<int>() == 1);
}

TEST_CASE("unpack views a frame in place and copies other bytes") {
  const std::vector<double> numbers = some_numbers();
  const Frame frame = pack(List{1, numbers}).value();
  const Item view = unpack(frame).value();
  const auto* place = static_cast<const std::byte*>(view[1].view().data);
  CHECK(place >= frame.bytes().data());
  CHECK(place < frame.bytes().data() + frame.bytes().size());
  CHECK(view[1].view().read_only);
  Item copy;
  {
    std::vector<std::byte> bytes(frame.bytes().begin(), frame.bytes().end());
    copy = unpack(bytes).value();
    std::fill(bytes.begin(), bytes.end(), std::byte{});
  }
  CHECK(copy[1].as<std::vector<double>>() == numbers);
  CHECK(unpack(Frame()).code() == Code::kCorrupt);
}

TEST_CASE("values of C++ can be packed and sent as portable frames") {
  Ends ends;
  auto portable = make_pair({.arena = ends.arena, .portable = true});
  portable.first.put(Dict{{"n", 1}}).value();
  CHECK(portable.second.take_frames(1).value()[0].item().portable());
  CHECK(pack(Dict{{"n", 1}}, {.portable = true}).value().portable());
}

TEST_CASE("take_frames reports invalid counts and empty or closed ends") {
  Ends ends;
  auto [sender, receiver] = ends.first;
  CHECK(receiver.take_frames(0).code() == Code::kInvalid);
  CHECK(receiver.take_frames(1, 0s).code() == Code::kEmpty);
  sender.put(1).value();
  sender.close();
  receiver.take_frames(5).value()[0].ack().value();
  CHECK(receiver.take_frames(5).code() == Code::kClosed);
  receiver.close();
  CHECK(receiver.take_frames(5).code() == Code::kClosed);
}
