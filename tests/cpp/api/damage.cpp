// Damaged messages among others: each is an error of its own, and no other message is affected.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/catch2.h"

using namespace std::chrono_literals;
using shmtree::Code;
using shmtree::Item;

namespace {

// A small arena, so that free blocks are reused immediately.
shmtree::Arena new_arena() {
  return shmtree::Arena::create({.max_bytes = 1 << 20}).value();
}

// Puts three messages with the numbers 1 to 3, and damages the frame of number 2. The same blocks held three earlier
// messages at known addresses. An array has the number of its block. Its frame begins at the start of the
// array's page.
void put_three_and_damage_the_second(const shmtree::Sender& sender, const shmtree::Receiver& receiver) {
  const auto put_three = [&] {
    for (int i = 1; i <= 3; ++i) sender.put(std::vector<double>(10'000, i)).value();
  };
  put_three();
  double* arrays[3];
  {
    const std::vector<Item> items = receiver.get_many(3, 0s).value();
    for (std::size_t i = 0; i < 3; ++i) arrays[i] = items[i].span<double>().data();
  }
  put_three();
  int damaged = 0;
  for (double* array : arrays) {
    if (*array != 2) continue;
    std::memset(reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(array) / 4096 * 4096), 0, 16);
    ++damaged;
  }
  REQUIRE(damaged == 1);
}

}  // namespace

TEST_CASE("get_many returns good messages before it reports damage") {
  auto [sender, receiver] = shmtree::make_pair({.arena = new_arena()});
  put_three_and_damage_the_second(sender, receiver);
  const auto first = receiver.get_many(5, 0s).value();
  REQUIRE(first.size() == 1);
  CHECK(first[0].span<double>()[0] == 1);
  const auto second = receiver.get_many(5, 0s);
  CHECK(second.code() == Code::kCorrupt);
  CHECK(second.error().ticket == 4);
  const auto third = receiver.get_many(5, 0s).value();
  REQUIRE(third.size() == 1);
  CHECK(third[0].span<double>()[0] == 3);
}

TEST_CASE("a damaged message that is taken is consumed") {
  auto [sender, receiver] = shmtree::make_pair({.arena = new_arena()});
  put_three_and_damage_the_second(sender, receiver);
  CHECK(receiver.take(0s).value().ack().ok());
  CHECK(receiver.take(0s).code() == Code::kCorrupt);
  CHECK(receiver.take(0s).value().item().span<double>()[0] == 3);
}
