// Arrays of new_array(): each is moved to one receiver, whatever function puts it, and however often.
#include <chrono>

#include "shmtree/shmtree.h"
#include "support/caller.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Caller;
using shmtree::test::Child;

namespace {

constexpr std::int64_t kCount = 4'096;

ArrayRef new_numbers(const Sender& sender) {
  NewArray array = sender.new_array(DType::kInt64, {kCount}).value();
  const std::span<std::int64_t> numbers = array.span<std::int64_t>();
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int64_t>(i);
  return array;
}
bool is_at(const Item& item, const void* place) {
  return item.span<std::int64_t>().data() == place;
}
bool has_numbers(const Item& item) {
  const auto numbers = item.span<std::int64_t>();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != static_cast<std::int64_t>(i)) return false;
  }
  return numbers.size() == kCount;
}

}  // namespace

// guarantee: new-array-moves-once
TEST_CASE("an array of a blocked put is copied by other puts") {
  const Arena arena = Arena::create({.max_bytes = 64 << 20}).value();
  auto [sender, receiver] = make_pair({.capacity = 1, .arena = arena});
  auto [other_sender, other_receiver] = make_pair({.arena = arena});
  sender.put(0).value();
  receiver.get().value();
  sender.put("full").value();
  const ArrayRef array = new_numbers(sender);
  Result<std::uint64_t> put{0};
  Caller waiting([&, to = sender](const std::stop_token&) { put = to.put(array); });
  other_sender.put(array).value();
  const Item copied = other_receiver.get().value();
  receiver.get().value();
  waiting.join();
  put.value();
  const Item given = receiver.get().value();
  CHECK(is_at(given, array.data));
  CHECK_FALSE(is_at(copied, array.data));
  CHECK(has_numbers(copied));
}

TEST_CASE("a put after a failed put does not copy the array") {
  auto [sender, receiver] = make_pair({.capacity = 1});
  sender.put(0).value();
  receiver.get().value();
  sender.put("full").value();
  const ArrayRef array = new_numbers(sender);
  CHECK(sender.put(array, 0s).code() == Code::kFull);
  receiver.get().value();
  sender.put(array, 0s).value();
  CHECK(is_at(receiver.get().value(), array.data));
}

// guarantee: new-array-moves-once
TEST_CASE("a forked child puts a copy of the array of its parent") {
  auto [sender, receiver] = make_pair();
  const ArrayRef array = new_numbers(sender);
  Child child([&, to = sender] { return to.put(array, 30s).ok(); });
  REQUIRE(child.succeeded());
  const Item from_child = receiver.get(30s).value();
  sender.put(array).value();
  const Item from_parent = receiver.get(30s).value();
  CHECK_FALSE(is_at(from_child, array.data));
  CHECK(is_at(from_parent, array.data));
  CHECK(has_numbers(from_child));
  CHECK(has_numbers(from_parent));
}

TEST_CASE("an array used twice in a message is stored once") {
  auto [sender, receiver] = make_pair();
  const ArrayRef array = new_numbers(sender);
  sender.put(Dict{{"a", array}, {"b", array}}).value();
  const Item item = receiver.get().value();
  CHECK(is_at(item["a"], array.data));
  CHECK(is_at(item["b"], array.data));
}

// guarantee: new-array-moves-once
TEST_CASE("putting a part of a new_array array copies it") {
  auto [sender, receiver] = make_pair();
  ArrayRef array = new_numbers(sender);
  ArrayRef part = array;
  part.shape = {kCount / 2};
  sender.put(part).value();
  const Item first = receiver.get().value();
  sender.put(array).value();
  const Item second = receiver.get().value();
  CHECK_FALSE(is_at(first, array.data));
  CHECK(is_at(second, array.data));
}
