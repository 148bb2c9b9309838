// The hash table that all layers use.
#include "platform/flat_table.h"

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "support/catch2.h"

using namespace shmtree;
using platform::FlatTable;

namespace {

struct Pair {
  std::uint64_t key = 0;
  std::uint64_t value = 0;

  bool is_free() const noexcept { return key == 0; }
};

auto has(std::uint64_t key) {
  return [key](const Pair& pair) { return pair.key == key; };
}

}  // namespace

TEST_CASE("A flat table behaves like a map") {
  const auto spread = GENERATE(std::uint64_t{1}, std::uint64_t{61}, ~std::uint64_t{0});  // the first ones collide
  const auto hash = [spread](std::uint64_t key) { return platform::mixed(key) >> 32 & spread; };
  const auto hash_of = [hash](const Pair& pair) { return hash(pair.key); };
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed << ", bits of the hash " << spread);
  std::mt19937 random(seed);
  FlatTable<Pair> table;
  std::map<std::uint64_t, std::uint64_t> model;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    const std::uint64_t key = 1 + random() % 200;
    Pair* found = table.find(hash(key), has(key));
    REQUIRE((found != nullptr) == model.contains(key));
    if (found != nullptr) REQUIRE(found->value == model[key]);
    if (random() % 2 == 0) {
      REQUIRE(table.make_space(hash_of));
      Pair& slot = table.slot(hash(key), has(key));
      if (slot.is_free()) table.insert(slot, {key, i});
      slot.value = model[key] = i;
    } else if (found != nullptr) {
      table.erase(found, hash_of);
      model.erase(key);
    }
    REQUIRE(table.size() == model.size());
  }
  std::map<std::uint64_t, std::uint64_t> visited;
  table.for_each([&](const Pair& pair) { visited[pair.key] = pair.value; });
  CHECK(visited == model);
  table.clear();
  CHECK(table.size() == 0);
  for (std::uint64_t key = 1; key <= 200; ++key) CHECK(table.find(hash(key), has(key)) == nullptr);
}

TEST_CASE("A flat table of indexes finds entries by their list") {
  std::vector<std::uint64_t> list;
  FlatTable<std::uint32_t> numbers;
  const auto hash_of = [&](std::uint32_t number) { return platform::mixed(list[number - 1]) >> 32; };
  for (std::uint64_t key = 0; key < 1'000; ++key) {
    REQUIRE(numbers.make_space(hash_of));
    list.push_back(key);
    numbers.insert(numbers.slot(platform::mixed(key) >> 32, [](std::uint32_t) { return false; }),
                   static_cast<std::uint32_t>(list.size()));
  }
  for (std::uint64_t key = 0; key < 1'000; ++key) {
    const std::uint32_t* found =
        numbers.find(platform::mixed(key) >> 32, [&](std::uint32_t number) { return list[number - 1] == key; });
    REQUIRE(found != nullptr);
    CHECK(*found == key + 1);
  }
}

TEST_CASE("clear_to frees a flat table over the allowed size") {
  FlatTable<std::uint32_t> table;
  const auto hash_of = [](std::uint32_t entry) { return platform::mixed(entry); };
  CHECK(table.slots() == 0);
  REQUIRE(table.make_space_for(100, hash_of));
  const std::size_t slots = table.slots();
  CHECK(slots >= 200);
  table.insert(table.slot(hash_of(7), [](std::uint32_t) { return false; }), 7);
  table.clear_to(slots);
  CHECK((table.slots() == slots && table.size() == 0));
  table.clear_to(slots - 1);
  CHECK(table.slots() == 0);
  CHECK(table.find(hash_of(7), [](std::uint32_t) { return true; }) == nullptr);
}
