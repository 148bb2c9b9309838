// Items that a process keeps do not change while others receive the same message, or reuse its memory.
#include <chrono>
#include <cstring>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Child;
using shmtree::test::Gate;

namespace {

constexpr std::int64_t kCount = 20'000;  // more than the size up to which messages are copied out

struct Big {
  double values[kCount];
};

struct Stages {
  Arena arena = Arena::create({.max_bytes = 64 << 20}).value();
  std::pair<Sender, Receiver> first = make_pair({.arena = arena});
  std::pair<Sender, Receiver> second = make_pair({.arena = arena});
  void put() { first.first.put(std::vector<double>(kCount, 1)).value(); }
  // Puts an array that has its own block.
  void put_referred() {
    const ArrayRef array = new_ones();
    first.first.put(Dict{{"a", array}}).value();
  }
  ArrayRef new_ones() {
    NewArray array = arena.new_array(DType::kFloat64, {kCount}).value();
    std::ranges::fill(array.span<double>(), 1.0);
    return array;
  }
};

bool is(double value, std::span<const double> numbers) {
  return numbers.size() == kCount && std::ranges::all_of(numbers, [=](double each) { return each == value; });
}
bool is(double value, const Item& item) {
  return is(value, item.span<const double>());
}
void fill(const Item& item, double value) {
  std::ranges::fill(item.span<double>(), value);
}

}  // namespace

// guarantee: redelivery-is-copied
TEST_CASE("a redelivered message is copied while an old item pins it") {
  Stages stages;
  stages.put();
  Item kept;
  const auto take = [&] {
    TakenItem taken = stages.first.second.take().value();
    kept = taken.item();
    return taken;
  };
  take().nack().value();
  const void* const place = kept.view().data;
  TakenItem again = stages.first.second.take().value();
  CHECK((again.redelivered() && again.item().view().data != place && is(1, again.item())));
  fill(again.item(), 2);
  CHECK(is(1, kept));
  fill(kept, 3);
  CHECK(is(2, again.item()));
  again.requeue().value();  // writing to a copy does not change the message
  const Item last = stages.first.second.get().value();
  CHECK((is(3, last) && last.view().data != place));
  fill(last, 4);
  CHECK(is(3, kept));

  kept = Item();
  stages.put();
  take().requeue().value();
  const void* const in_block = kept.view().data;
  kept = Item();
  take().ack().value();
  CHECK(kept.view().data == in_block);  // no other process or item has it pinned
}

// guarantee: redelivery-is-copied
TEST_CASE("a redelivered new_array array is copied while it is pinned") {
  Stages stages;
  stages.put_referred();
  TakenItem taken = stages.first.second.take().value();
  const Item kept = taken.item()["a"];
  taken.nack().value();
  Item got = stages.first.second.get().value();
  CHECK(got["a"].view().data != kept.view().data);
  fill(got["a"], 2);
  CHECK(is(1, kept));
  stages.second.first.put(std::move(got)).value();
  CHECK(is(2, stages.second.second.get().value()["a"]));
}

// guarantee: redelivery-is-copied
TEST_CASE("kept bytes stay unchanged when a redelivery is forwarded") {
  Stages stages;
  stages.first.first.put_struct(Big{{1}}).value();
  FlatItem kept;
  {
    TakenBytes taken = stages.first.second.take_bytes().value();
    kept = taken.item();
    taken.nack().value();
  }
  Child child([&] { return stages.second.first.put(stages.first.second.get_bytes().value()).ok(); });
  REQUIRE(child.succeeded());
  const Item got = stages.second.second.get().value();
  const double two = 2;
  std::memcpy(got.view().mutable_data(), &two, sizeof two);
  CHECK(kept.as<Big>().values[0] == 1);
}

// guarantee: redelivery-is-copied
TEST_CASE("a message pinned by a child of a dead taker is copied") {
  Stages stages;
  stages.put();
  const Gate taken, go;
  Child taker([&] {
    const TakenItem mine = stages.first.second.take().value();
    if (fork() == 0) {  // the child outlives its parent
      alarm(280);
      taken.open();
      go.wait();
      _exit(stages.second.first.put(is(1, mine.item()) ? 1 : 0).ok() ? 0 : 1);
    }
    pause();
    return true;
  });
  taken.wait();
  taker.kill_and_wait();
  const TakenItem again = stages.first.second.take(30s).value();
  fill(again.item(), 2);
  go.open();
  CHECK(stages.second.second.get(30s).value().as<int>() == 1);
}

// guarantee: redelivery-is-copied
TEST_CASE("a forked child keeps its views when its parent forwards them") {
  Stages stages;
  stages.put();
  Item item = stages.first.second.get().value();
  ArrayRef array = stages.new_ones();
  const void *const item_place = item.view().data, *const array_place = array.data;
  {
    const Gate go;
    Child child([&] {
      go.wait();
      return is(1, item) && is(1, {static_cast<const double*>(array.data), kCount});
    });
    stages.second.first.put(Dict{{"item", item}, {"array", array}}).value();
    stages.second.first.put(Dict{{"item", std::move(item)}, {"array", array}}).value();
    for (int i = 0; i < 2; ++i) {
      const Item got = stages.second.second.get().value();
      CHECK((got["item"].view().data != item_place && got["array"].view().data != array_place));
      fill(got["item"], 2);
      fill(got["array"], 2);
    }
    go.open();
    CHECK(child.succeeded());
  }
  stages.second.first.put(array).value();
  CHECK(stages.second.second.get().value().view().data == array_place);  // the child has exited
}
