// Samplers that sample in order of time or of priority.
#include <algorithm>
#include <deque>
#include <map>

#include "support/catch2.h"
#include "support/samples.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

const TableSpec kFifo{.kind = SamplerKind::kFifo}, kLifo{.kind = SamplerKind::kLifo};
const TableSpec kOldestOnce{.kind = SamplerKind::kFifo, .max_times = 1};
const TableSpec kNewestOnce{.kind = SamplerKind::kLifo, .max_times = 1};
const TableSpec kLargest{.kind = SamplerKind::kMaxPriority};

}  // namespace

TEST_CASE("Oldest and newest rows are sampled in order and repeatedly") {
  const auto tables = new_tables({.capacity = 40, .rows_per_chunk = 4}, {kFifo, kLifo});
  Writer writer(tables->store(), 1, tables.get());
  std::vector<std::uint64_t> added;
  for (std::uint64_t i = 0; i < 100; ++i) added.push_back(add_row(writer, i));
  const std::size_t size = tables->store()->size();
  const auto oldest = new_sampler(tables, 0), newest = new_sampler(tables, 1);
  Samples samples(10);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(samples.from(*oldest).ok());
    CHECK(std::equal(samples.indices.begin(), samples.indices.end(), added.end() - static_cast<std::ptrdiff_t>(size)));
    REQUIRE(samples.from(*newest).ok());
    CHECK(std::equal(samples.indices.begin(), samples.indices.end(), added.rbegin()));
  }
  Samples too_many(size + 1);
  CHECK(too_many.from(*oldest, true).code() == Code::kInvalid);
}

TEST_CASE("Rows with max_times 1 are sampled oldest first until empty") {
  const auto tables = new_tables({.capacity = 40, .rows_per_chunk = 4}, {kOldestOnce});
  Writer writer(tables->store(), 1, tables.get());
  const auto one = new_sampler(tables), other = new_sampler(tables);
  std::deque<std::uint64_t> waiting;
  Samples samples(3);
  for (std::uint64_t i = 0; i < 300; ++i) {
    waiting.push_back(add_row(writer, i));
    if (i % 3 != 2) continue;
    REQUIRE(samples.from(i % 2 == 0 ? *one : *other).ok());
    for (const std::uint64_t index : samples.indices) {
      CHECK(index == waiting.front());
      waiting.pop_front();
    }
    CHECK(samples.from(*one).code() == Code::kEmpty);
  }
  add_row(writer, 300), add_row(writer, 301);
  CHECK(samples.from(*one).code() == Code::kEmpty);  // only two rows are left; the failed call takes none
  add_row(writer, 302);
  CHECK(samples.from(*other).ok());
}

TEST_CASE("Newest unsampled rows come first across the buffer end") {
  const auto tables = new_tables({.capacity = 20, .rows_per_chunk = 1}, {kNewestOnce});
  Writer writer(tables->store(), 1, tables.get());
  const auto sampler = new_sampler(tables);
  std::vector<std::uint64_t> stack;
  Samples samples(2);
  for (std::uint64_t i = 0; i < 200; ++i) {
    stack.push_back(add_row(writer, i));
    if (i % 4 != 3) continue;
    REQUIRE(samples.from(*sampler).ok());
    for (const std::uint64_t index : samples.indices) {
      CHECK(index == stack.back());
      stack.pop_back();
    }
  }
}

TEST_CASE("Ordered sampling with repetition wraps around") {
  for (const TableSpec& spec : {kFifo, kLifo, kLargest}) {
    const auto tables = new_tables({.capacity = 40, .rows_per_chunk = 4}, {spec});
    Writer writer(tables->store(), 1, tables.get());
    const auto sampler = new_sampler(tables);
    Samples samples(8);
    CHECK(sampler->sample(samples.sample(), false).code() == Code::kEmpty);
    std::vector<std::uint64_t> order;
    for (std::uint64_t i = 0; i < 3; ++i) order.push_back(add_row(writer, i, static_cast<float>(3 - i)));
    if (spec.kind == SamplerKind::kLifo) std::ranges::reverse(order);
    REQUIRE(sampler->sample(samples.sample(), false).ok());
    for (std::size_t i = 0; i < 8; ++i) CHECK(samples.indices[i] == order[i % 3]);
  }
}

TEST_CASE("Wrapped sampling respects max_times") {
  const TableSpec twice{.kind = SamplerKind::kFifo, .max_times = 2};
  const auto tables = new_tables({.capacity = 40, .rows_per_chunk = 4}, {twice});
  Writer writer(tables->store(), 1, tables.get());
  const auto sampler = new_sampler(tables);
  const std::uint64_t first = add_row(writer, 0), second = add_row(writer, 1);
  Samples one(1), four(4), three(3);
  CHECK(sampler->sample(four.sample(), true).code() == Code::kEmpty);
  REQUIRE(sampler->sample(one.sample(), false).ok());
  // Only three samples are left. The failed call takes none.
  CHECK(sampler->sample(four.sample(), false).code() == Code::kEmpty);
  REQUIRE(sampler->sample(three.sample(), false).ok());
  CHECK(three.indices == std::vector{first, second, second});
  CHECK(sampler->sample(one.sample(), false).code() == Code::kEmpty);
}

TEST_CASE("Rows of the largest current priorities are sampled") {
  const auto tables = new_tables({.capacity = 400, .rows_per_chunk = 8}, {kLargest});
  Writer writer(tables->store(), 1, tables.get());
  std::map<std::uint64_t, double> priority;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const auto given = static_cast<float>(i * 7919 % 1000);
    priority[add_row(writer, i, given)] = given;
  }
  const auto sampler = new_sampler(tables);
  Samples samples(25);
  for (int round = 0; round < 10; ++round) {
    std::vector<double> sorted, sampled;
    for (const auto& [index, value] : priority) sorted.push_back(value);
    std::ranges::sort(sorted, std::greater());
    sorted.resize(25);
    REQUIRE(samples.from(*sampler).ok());
    for (const std::uint64_t index : samples.indices) sampled.push_back(priority[index]);
    CHECK(sampled == sorted);
    std::vector<double> lower(25, round);
    update(*tables, samples.indices, lower).value();
    for (const std::uint64_t index : samples.indices) priority[index] = round;
  }
  Samples too_many(301);
  CHECK(too_many.from(*sampler, true).code() == Code::kInvalid);
  Samples all(300);
  CHECK(all.from(*sampler).ok());
}

TEST_CASE("Overwritten rows of an ordered sample are replaced") {
  for (const TableSpec& spec : {kFifo, kOldestOnce, kLargest}) {
    const auto tables = new_tables({.capacity = 40, .rows_per_chunk = 1}, {spec});
    Writer writer(tables->store(), 1, tables.get());
    std::vector<std::uint64_t> added;
    for (std::uint64_t i = 0; i < 10; ++i) added.push_back(add_row(writer, i, static_cast<float>(20 - i)));
    const auto sampler = new_sampler(tables);
    Samples samples(4);
    REQUIRE(samples.from(*sampler).ok());
    const bool gone[4] = {false, true, false, false};
    for (std::uint64_t i = 0; i < 32; ++i) added.push_back(add_row(writer, 10 + i));
    REQUIRE(sampler->resample(samples.sample(), gone, true).ok());
    CHECK(std::ranges::count(samples.indices, samples.indices[1]) == 1);
    CHECK(row_at(tables->store(), samples.indices[1]).has_value());
  }
}
