// Forwarded items: copied, or moved on without a copy if this process has no other handle of them.
#include <chrono>

#include "shmtree/array.h"
#include "shmtree/shmtree.h"
#include "support/caller.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Caller;
using shmtree::test::Child;

namespace {

constexpr std::size_t kCount = 20'000;  // more than the size up to which messages are copied out

std::vector<double> some_numbers() {
  std::vector<double> numbers(kCount);
  for (std::size_t i = 0; i < kCount; ++i) numbers[i] = static_cast<double>(i);
  return numbers;
}
bool has_numbers(const Item& item) {
  const std::vector<double> numbers = some_numbers();
  return std::ranges::equal(item.span<const double>(), numbers);
}
const void* place_of(const Item& item) {
  return item.view().data;
}
Item received(const Sender& sender, const Receiver& receiver, bool read_only = false) {
  const std::vector<double> numbers = some_numbers();
  ArrayRef array = array_ref(numbers.data(), {kCount});
  array.read_only = read_only;
  sender.put(Dict{{"a", array}, {"n", 7}}).value();
  return receiver.get().value();
}

struct Stages {
  Arena arena = Arena::create({.max_bytes = 64 << 20}).value();
  std::pair<Sender, Receiver> first = make_pair({.arena = arena});
  std::pair<Sender, Receiver> second = make_pair({.capacity = 1, .arena = arena});
  Item get() { return received(first.first, first.second); }
  void fill_second() {
    second.first.put(0).value();  // an end counts only after its first use
    second.second.get().value();
    second.first.put("full").value();
  }
};

}  // namespace

TEST_CASE("putting an lvalue item sends a copy") {
  Stages stages;
  const Item item = stages.get();
  stages.second.first.put(Dict{{"b", item["a"]}, {"n", item["n"]}}).value();
  const Item got = stages.second.second.get().value();
  CHECK(has_numbers(got["b"]));
  CHECK(got["n"].as<int>() == 7);
  CHECK(place_of(got["b"]) != place_of(item["a"]));
  item["a"].span<double>()[0] = -1;
  CHECK(got["b"].span<double>()[0] == 0);
}

// guarantee: cpp-forwarding
TEST_CASE("a moved item is forwarded through channels without a copy") {
  Stages stages;
  Item item = stages.get();
  const void* place = place_of(item["a"]);
  stages.second.first.put(std::move(item)).value();
  CHECK(item.is_none());  // NOLINT(bugprone-use-after-move)
  Item got = stages.second.second.get().value();
  CHECK(place_of(got["a"]) == place);
  got["a"].span<double>()[0] = 0;  // the receiver may write to it
  stages.first.first.put(Dict{{"again", std::move(got)}}).value();
  const Item back = stages.first.second.get().value();
  CHECK(place_of(back["again"]["a"]) == place);
  CHECK(has_numbers(back["again"]["a"]));
}

// guarantee: cpp-forwarding
TEST_CASE("a moved item is copied if an item or view still pins it") {
  Stages stages;
  Item item = stages.get();
  const Item other = item["n"];
  const void* place = place_of(item["a"]);
  stages.second.first.put(std::move(item)).value();
  CHECK(place_of(stages.second.second.get().value()["a"]) != place);
  item = stages.get();
  const auto view = item["a"].array<double>();
  stages.second.first.put(std::move(item)).value();
  const Item got = stages.second.second.get().value();
  CHECK(static_cast<const void*>(view.data()) != place_of(got["a"]));
}

// guarantee: cpp-forwarding
TEST_CASE("moving every item of a message forwards its arrays in place") {
  Stages stages;
  const std::vector<double> numbers = some_numbers();
  const auto get_two = [&] {
    stages.first.first.put(Dict{{"a", numbers}, {"b", numbers}}).value();
    Item item = stages.first.second.get().value();
    return std::pair(item["a"], item["b"]);
  };
  auto [a, b] = get_two();
  const void *place_a = place_of(a), *place_b = place_of(b);
  stages.second.first.put(Dict{{"a", std::move(a)}, {"deep", List{std::tuple(1, std::move(b))}}}).value();
  const Item got = stages.second.second.get().value();
  CHECK((place_of(got["a"]) == place_a && place_of(got["deep"][0][1]) == place_b));
  CHECK((has_numbers(got["a"]) && has_numbers(got["deep"][0][1])));

  auto [c, d] = get_two();
  place_a = place_of(c);
  const Item another = d;
  stages.second.first.put(Dict{{"a", std::move(c)}, {"b", std::move(d)}}).value();
  const Item copied = stages.second.second.get().value();
  CHECK((place_of(copied["a"]) != place_a && place_of(copied["b"]) != place_of(another)));

  auto [e, f] = get_two();
  place_a = place_of(e);
  stages.second.first.put(Dict{{"a", std::move(e)}, {"b", f}}).value();
  CHECK(place_of(stages.second.second.get().value()["a"]) != place_a);
}

// guarantee: cpp-forwarding
TEST_CASE("put refuses a copy of a value that another put is sending") {
  Stages stages;
  stages.fill_second();
  const std::vector<double> numbers = some_numbers();
  stages.first.first.put(List{numbers, numbers}).value();
  Item first = stages.first.second.get().value(), second = first[1];
  first = first[0];
  const void* place = place_of(first);
  const Value value = List{std::move(first), std::move(second)}, copy = value;
  Result<std::uint64_t> put{0};
  Caller waiting([&, to = stages.second.first](const std::stop_token&) { put = to.put(value); });
  CHECK(stages.first.first.put(copy, 0s).code() == Code::kInvalid);
  stages.second.second.get().value();
  waiting.join();
  put.value();
  CHECK(place_of(stages.second.second.get().value()[0]) == place);
}

TEST_CASE("thousands of items moved into one value are not copied") {
  Stages stages;
  constexpr std::size_t kItems = 5'000;
  const std::vector<double> numbers(16);
  stages.first.first.put(std::vector<std::vector<double>>(kItems, numbers)).value();
  std::vector<Item> items;
  {
    const Item all = stages.first.second.get().value();
    for (const Item& each : all) items.push_back(each);
  }
  const void *first = place_of(items.front()), *last = place_of(items.back());
  stages.second.first.put(std::move(items)).value();
  const Item got = stages.second.second.get().value();
  CHECK((place_of(got[0]) == first && place_of(got[kItems - 1]) == last));
}

TEST_CASE("forwarding moves an acked item and copies a nacked one") {
  Stages stages;
  const std::vector<double> numbers = some_numbers();
  stages.first.first.put(array_ref(numbers.data(), {kCount})).value();
  Item item;
  {
    TakenItem taken = stages.first.second.take().value();
    item = taken.item();
    taken.nack().value();
  }
  const void* const place = place_of(item);
  stages.second.first.put(std::move(item)).value();
  CHECK(place_of(stages.second.second.get().value()) != place);
  {
    TakenItem again = stages.first.second.take().value();
    CHECK(place_of(again.item()) == place);
    item = again.item();
    again.ack().value();
  }
  stages.second.first.put(std::move(item)).value();
  CHECK(place_of(stages.second.second.get().value()) == place);
}

TEST_CASE("read-only items are forwarded by reference on every put") {
  Stages stages;
  const Item item = received(stages.first.first, stages.first.second, true);
  for (int i = 0; i < 2; ++i) {
    stages.second.first.put(item["a"]).value();
    const Item got = stages.second.second.get().value();
    CHECK(place_of(got) == place_of(item["a"]));
    CHECK(got.view().read_only);
  }
}

TEST_CASE("an item survives a failed put and the next put moves it") {
  Stages stages;
  stages.fill_second();
  Item item = stages.get();
  const void* place = place_of(item["a"]);
  CHECK(stages.second.first.put(std::move(item), 0s).code() == Code::kFull);
  CHECK(has_numbers(item["a"]));  // NOLINT(bugprone-use-after-move)
  stages.second.second.get().value();
  stages.second.first.put(std::move(item), 0s).value();
  CHECK(place_of(stages.second.second.get().value()["a"]) == place);
}

// guarantee: cpp-forwarding
TEST_CASE("a value with a moved item is refused after its first put") {
  Stages stages;
  Item item = stages.get();
  const void* place = place_of(item["a"]);
  const Value value = Dict{{"a", std::move(item)}};
  const std::vector<Value> twice{value, value};
  const Status put = stages.second.first.put_many(twice, 30s);
  CHECK((put.code() == Code::kInvalid && put.error().completed == 1));
  const Item given = stages.second.second.get().value();
  CHECK(place_of(given["a"]["a"]) == place);
  CHECK(stages.second.first.put(value).code() == Code::kInvalid);
  auto [sender, receiver] = make_pair({.arena = Arena::create({.max_bytes = 64 << 20}).value()});
  CHECK(sender.put(value).code() == Code::kInvalid);  // also into an arena in which forwarding would copy
  CHECK((receiver.size() == 0 && has_numbers(given["a"]["a"])));
}

// guarantee: cpp-forwarding
TEST_CASE("put refuses a value of a blocked put until that is stopped") {
  Stages stages;
  stages.fill_second();
  Item item = stages.get();
  const void* place = place_of(item["a"]);
  const Value value(std::move(item));
  Result<std::uint64_t> put{0};
  Caller waiting(
      [&, to = stages.second.first](const std::stop_token& stop) { put = to.put(value, std::nullopt, stop); });
  CHECK(stages.first.first.put(value).code() == Code::kInvalid);
  waiting.stop();
  waiting.join();
  CHECK(put.code() == Code::kInterrupted);
  stages.first.first.put(value).value();
  CHECK(place_of(stages.first.second.get().value()["a"]) == place);
}

// guarantee: cpp-forwarding
TEST_CASE("an item that a forked child forwards is copied") {
  Stages stages;
  Item item = stages.get();
  const void* place = place_of(item["a"]);
  Child child([&, to = stages.second.first] { return to.put(std::move(item), 30s).ok(); });
  REQUIRE(child.succeeded());
  const Item from_child = stages.second.second.get(30s).value();
  stages.second.first.put(std::move(item)).value();
  const Item from_parent = stages.second.second.get(30s).value();
  CHECK(place_of(from_child["a"]) != place);
  CHECK(place_of(from_parent["a"]) == place);
  CHECK(has_numbers(from_child["a"]));
}

TEST_CASE("a moved item that is small or foreign arrives unchanged") {
  Stages stages;
  auto [sender, receiver] = make_pair({.arena = Arena::create({.max_bytes = 64 << 20}).value()});
  Item item = stages.get();
  sender.put(std::move(item)).value();
  CHECK(has_numbers(receiver.get().value()["a"]));
  sender.put(Dict{{"small", std::vector<int>{1, 2}}}).value();
  sender.put(receiver.get().value()).value();
  CHECK(receiver.get().value()["small"].as<std::vector<int>>() == std::vector<int>{1, 2});
}

TEST_CASE("the last receiver frees the memory of a forwarded item") {
  Stages stages;
  const std::uint64_t before = stages.arena.usage().used_bytes;
  Item item = stages.get();
  for (int i = 0; i < 10; ++i) {
    stages.second.first.put(std::move(item)).value();
    item = stages.second.second.get().value();
  }
  CHECK(has_numbers(item["a"]));
  item = Item();
  CHECK(stages.arena.usage().used_bytes == before);
}

TEST_CASE("one message carries new and received arrays without a copy") {
  Stages stages;
  Item item = stages.get();
  const void* place = place_of(item["a"]);
  const ArrayRef array = stages.arena.new_array(DType::kInt64, {5'000}).value();
  stages.second.first.put(Dict{{"new", array}, {"old", std::move(item)}}).value();
  const Item got = stages.second.second.get().value();
  CHECK(place_of(got["new"]) == array.data);
  CHECK(place_of(got["old"]["a"]) == place);
}
