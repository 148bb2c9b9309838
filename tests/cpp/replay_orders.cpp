// Samplers that draw in order: of time, or of priority.
#include <algorithm>
#include <deque>
#include <map>

#include "support/catch2.h"
#include "support/draws.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

const TableSpec kFifo{.kind = SamplerKind::kFifo}, kLifo{.kind = SamplerKind::kLifo};
const TableSpec kOldestOnce{.kind = SamplerKind::kFifo, .max_times = 1};
const TableSpec kNewestOnce{.kind = SamplerKind::kLifo, .max_times = 1};
const TableSpec kLargest{.kind = SamplerKind::kMaxPriority};

}  // namespace

TEST_CASE("The oldest and the newest rows are drawn in their order, each once, and again in the next draw") {
  const auto tables = new_tables({.capacity = 40, .rows_per_place = 4}, {kFifo, kLifo});
  Writer writer(tables->store(), 1, tables.get());
  std::vector<std::uint64_t> added;
  for (std::uint64_t i = 0; i < 100; ++i) added.push_back(add_row(writer, i));
  const std::size_t size = tables->store()->size();
  const auto oldest = new_drawer(tables, 0), newest = new_drawer(tables, 1);
  Draws draws(10);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(draws.from(*oldest).ok());
    CHECK(std::equal(draws.indices.begin(), draws.indices.end(), added.end() - static_cast<std::ptrdiff_t>(size)));
    REQUIRE(draws.from(*newest).ok());
    CHECK(std::equal(draws.indices.begin(), draws.indices.end(), added.rbegin()));
  }
  Draws too_many(size + 1);
  CHECK(too_many.from(*oldest, true).code() == Code::kInvalid);
}

TEST_CASE("Rows that may be drawn once come in order of time, whoever draws, until there are no more") {
  const auto tables = new_tables({.capacity = 40, .rows_per_place = 4}, {kOldestOnce});
  Writer writer(tables->store(), 1, tables.get());
  const auto one = new_drawer(tables), other = new_drawer(tables);
  std::deque<std::uint64_t> waiting;
  Draws draws(3);
  for (std::uint64_t i = 0; i < 300; ++i) {
    waiting.push_back(add_row(writer, i));
    if (i % 3 != 2) continue;
    REQUIRE(draws.from(i % 2 == 0 ? *one : *other).ok());
    for (const std::uint64_t index : draws.indices) {
      CHECK(index == waiting.front());
      waiting.pop_front();
    }
    CHECK(draws.from(*one).code() == Code::kEmpty);
  }
  add_row(writer, 300), add_row(writer, 301);
  CHECK(draws.from(*one).code() == Code::kEmpty);  // two are no three, and nothing is taken
  add_row(writer, 302);
  CHECK(draws.from(*other).ok());
}

TEST_CASE("The newest rows that were not drawn yet come first, also across the end of the buffer") {
  const auto tables = new_tables({.capacity = 20, .rows_per_place = 1}, {kNewestOnce});
  Writer writer(tables->store(), 1, tables.get());
  const auto drawer = new_drawer(tables);
  std::vector<std::uint64_t> stack;
  Draws draws(2);
  for (std::uint64_t i = 0; i < 200; ++i) {
    stack.push_back(add_row(writer, i));
    if (i % 4 != 3) continue;
    REQUIRE(draws.from(*drawer).ok());
    for (const std::uint64_t index : draws.indices) {
      CHECK(index == stack.back());
      stack.pop_back();
    }
  }
}

TEST_CASE("Who draws more rows than there are in order, and not each once, goes round again") {
  for (const TableSpec& spec : {kFifo, kLifo, kLargest}) {
    const auto tables = new_tables({.capacity = 40, .rows_per_place = 4}, {spec});
    Writer writer(tables->store(), 1, tables.get());
    const auto drawer = new_drawer(tables);
    Draws draws(8);
    CHECK(drawer->draw(draws.picks(), false).code() == Code::kEmpty);
    std::vector<std::uint64_t> order;
    for (std::uint64_t i = 0; i < 3; ++i) order.push_back(add_row(writer, i, static_cast<float>(3 - i)));
    if (spec.kind == SamplerKind::kLifo) std::ranges::reverse(order);
    REQUIRE(drawer->draw(draws.picks(), false).ok());
    for (std::size_t i = 0; i < 8; ++i) CHECK(draws.indices[i] == order[i % 3]);
  }
}

TEST_CASE("Going round, no row is drawn more often than it may be") {
  const TableSpec twice{.kind = SamplerKind::kFifo, .max_times = 2};
  const auto tables = new_tables({.capacity = 40, .rows_per_place = 4}, {twice});
  Writer writer(tables->store(), 1, tables.get());
  const auto drawer = new_drawer(tables);
  const std::uint64_t first = add_row(writer, 0), second = add_row(writer, 1);
  Draws one(1), four(4), three(3);
  CHECK(drawer->draw(four.picks(), true).code() == Code::kEmpty);
  REQUIRE(drawer->draw(one.picks(), false).ok());
  CHECK(drawer->draw(four.picks(), false).code() == Code::kEmpty);  // three are no four, and nothing is taken
  REQUIRE(drawer->draw(three.picks(), false).ok());
  CHECK(three.indices == std::vector{first, second, second});
  CHECK(drawer->draw(one.picks(), false).code() == Code::kEmpty);
}

TEST_CASE("The rows of the largest priorities are drawn, as these are now") {
  const auto tables = new_tables({.capacity = 400, .rows_per_place = 8}, {kLargest});
  Writer writer(tables->store(), 1, tables.get());
  std::map<std::uint64_t, double> priority;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const auto given = static_cast<float>(i * 7919 % 1000);
    priority[add_row(writer, i, given)] = given;
  }
  const auto drawer = new_drawer(tables);
  Draws draws(25);
  for (int round = 0; round < 10; ++round) {
    std::vector<double> sorted, drawn;
    for (const auto& [index, value] : priority) sorted.push_back(value);
    std::ranges::sort(sorted, std::greater());
    sorted.resize(25);
    REQUIRE(draws.from(*drawer).ok());
    for (const std::uint64_t index : draws.indices) drawn.push_back(priority[index]);
    CHECK(drawn == sorted);
    std::vector<double> lower(25, round);
    update(*tables, draws.indices, lower).value();
    for (const std::uint64_t index : draws.indices) priority[index] = round;
  }
  Draws too_many(301);
  CHECK(too_many.from(*drawer, true).code() == Code::kInvalid);
  Draws all(300);
  CHECK(all.from(*drawer).ok());
}

TEST_CASE("Rows drawn in order that had gone are replaced by the next ones") {
  for (const TableSpec& spec : {kFifo, kOldestOnce, kLargest}) {
    const auto tables = new_tables({.capacity = 40, .rows_per_place = 1}, {spec});
    Writer writer(tables->store(), 1, tables.get());
    std::vector<std::uint64_t> added;
    for (std::uint64_t i = 0; i < 10; ++i) added.push_back(add_row(writer, i, static_cast<float>(20 - i)));
    const auto drawer = new_drawer(tables);
    Draws draws(4);
    REQUIRE(draws.from(*drawer).ok());
    const bool gone[4] = {false, true, false, false};
    for (std::uint64_t i = 0; i < 32; ++i) added.push_back(add_row(writer, 10 + i));
    REQUIRE(drawer->redraw(draws.picks(), gone, true).ok());
    CHECK(std::ranges::count(draws.indices, draws.indices[1]) == 1);
    CHECK(row_at(tables->store(), draws.indices[1]).has_value());
  }
}
