// Rows are sampled in proportion to their current priorities, whichever process changed these.
#include "support/samples.h"

#include <algorithm>
#include <map>
#include <set>

#include "support/catch2.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

const TableSpec kUniform{.kind = SamplerKind::kUniform};
const TableSpec kByPriority{.kind = SamplerKind::kPrioritized, .alpha = 1, .eps = 0};

// Pearson's chi-squared test of the number of samples of each index against its probability. A correct sampler fails
// once in 10^9 runs: Wilson and Hilferty's normal approximation is below 6 standard deviations.
bool fits(const std::map<std::uint64_t, std::uint64_t>& times, const std::map<std::uint64_t, double>& likely) {
  double sum = 0, statistic = 0, samples = 0;
  for (const auto& [index, weight] : likely) sum += weight;
  for (const auto& [index, count] : times) samples += static_cast<double>(count);
  for (const auto& [index, weight] : likely) {
    const double expected = samples * weight / sum;
    const auto found = times.find(index);
    const double off = (found == times.end() ? 0 : static_cast<double>(found->second)) - expected;
    statistic += off * off / expected;
  }
  const auto freedom = static_cast<double>(likely.size() - 1);
  INFO("chi-square " << statistic << " of " << freedom);
  CHECK(times.size() <= likely.size());
  const double spread = 2 / (9 * freedom);
  return (std::cbrt(statistic / freedom) - (1 - spread)) / std::sqrt(spread) < 6;
}

}  // namespace

// guarantee: replay-priorities
TEST_CASE("Rows are sampled in proportion to their priorities") {
  const auto tables = new_tables({.capacity = 1000, .rows_per_chunk = 8}, {kByPriority});
  Writer writer(tables->store(), 1, tables.get());
  std::map<std::uint64_t, double> likely;
  std::map<std::uint64_t, std::uint64_t> times;
  for (std::uint64_t i = 0; i < 400; ++i) {
    const auto priority = static_cast<float>(1 + i % 7);
    likely[add_row(writer, i, priority)] = priority;
  }
  const auto sampler = new_sampler(tables);
  Samples samples(512);
  for (int i = 0; i < 200; ++i) {
    REQUIRE(samples.from(*sampler).ok());
    for (const std::uint64_t index : samples.indices) ++times[index];
  }
  CHECK(fits(times, likely));
  std::vector<std::uint64_t> changed;
  for (auto& [index, weight] : likely) {
    if (weight > 4) changed.push_back(index), weight = 0.25;
  }
  update(*tables, changed, std::vector<double>(changed.size(), 0.25)).value();
  times.clear();
  for (int i = 0; i < 200; ++i) {
    REQUIRE(samples.from(*sampler).ok());
    for (const std::uint64_t index : samples.indices) ++times[index];
  }
  CHECK(fits(times, likely));
}

TEST_CASE("A uniform sampler is uniform with and without max_times") {
  for (const std::uint32_t max_times : {0u, 1'000'000u}) {
    const auto tables =
        new_tables({.capacity = 500, .rows_per_chunk = 8}, {{.kind = SamplerKind::kUniform, .max_times = max_times}});
    Writer writer(tables->store(), 1, tables.get());
    std::map<std::uint64_t, double> likely;
    std::map<std::uint64_t, std::uint64_t> times;
    for (std::uint64_t i = 0; i < 300; ++i) likely[add_row(writer, i)] = 1;
    const auto sampler = new_sampler(tables);
    Samples samples(256);
    for (int i = 0; i < 300; ++i) {
      REQUIRE(samples.from(*sampler).ok());
      for (const std::uint64_t index : samples.indices) ++times[index];
    }
    CHECK(fits(times, likely));
  }
}

TEST_CASE("A sample has the probability and weight of each row") {
  const auto tables = new_tables({.capacity = 100}, {kByPriority});
  Writer writer(tables->store(), 1, tables.get());
  std::map<std::uint64_t, double> priority;
  for (std::uint64_t i = 1; i <= 10; ++i) priority[add_row(writer, i, static_cast<float>(i))] = static_cast<double>(i);
  const auto sampler = new_sampler(tables);
  Samples samples(64);
  REQUIRE(samples.from(*sampler).ok());
  std::vector<double> probabilities(64);
  std::vector<float> importances(64);
  double least = 100;
  for (const std::uint64_t index : samples.indices) least = std::min(least, priority[index]);
  for (const bool of_buffer : {false, true}) {
    sampler->describe(samples.sample(), probabilities, importances, 0.5, of_buffer);
    for (std::size_t i = 0; i < 64; ++i) {
      CHECK(probabilities[i] == Approx(priority[samples.indices[i]] / 55));
      CHECK(importances[i] == Approx(std::sqrt((of_buffer ? 1 : least) / priority[samples.indices[i]])));
    }
  }
}

// guarantee: ray-shard-weights
TEST_CASE("weigh returns current totals without sampling rows") {
  for (const bool has_priorities : {false, true}) {
    const auto tables = new_tables({.capacity = 100, .rows_per_chunk = 8}, {has_priorities ? kByPriority : kUniform});
    Writer writer(tables->store(), 1, tables.get());
    const auto sampler = new_sampler(tables);
    CHECK(sampler->weigh(false).value().total == 0);
    std::vector<std::uint64_t> rows;
    for (int i = 0; i < 3; ++i) rows.push_back(add_row(writer, 0, 4));
    CHECK(sampler->weigh(false).value().total == (has_priorities ? 12 : 3));
    if (has_priorities) update(*tables, {rows[1]}, {0.5}).value();
    const auto weights = sampler->weigh(true).value();
    CHECK(weights.total == (has_priorities ? 8.5 : 3));
    CHECK(weights.least == (has_priorities ? 0.5 : 1));
    CHECK((*tables)[0].samples() == 0);
  }
}

TEST_CASE("Without repetition each row is sampled once and no more") {
  for (const TableSpec& spec : {kUniform, kByPriority}) {
    const auto tables = new_tables({.capacity = 200, .rows_per_chunk = 8}, {spec});
    Writer writer(tables->store(), 1, tables.get());
    float priority = 1;
    for (std::uint64_t i = 0; i < 60; ++i, priority *= 3) add_row(writer, i, priority);
    const auto sampler = new_sampler(tables);
    Samples all(60), too_many(61);
    for (int i = 0; i < 3; ++i) {
      REQUIRE(all.from(*sampler, true).ok());
      CHECK(std::set(all.indices.begin(), all.indices.end()).size() == 60);
    }
    const Status refused = too_many.from(*sampler, true);
    REQUIRE(refused.code() == Code::kInvalid);
    CHECK(refused.error().message.find("61") != std::string::npos);
    CHECK(refused.error().message.find("60") != std::string::npos);
    CHECK(too_many.from(*sampler, false).ok());
  }
}

TEST_CASE("Sampling without repetition follows the priorities") {
  const auto tables = new_tables({.capacity = 200, .rows_per_chunk = 8}, {kByPriority});
  Writer writer(tables->store(), 1, tables.get());
  const std::uint64_t heavy = add_row(writer, 0, 1e20f);
  std::map<std::uint64_t, double> likely;
  for (std::uint64_t i = 1; i <= 20; ++i) {
    const auto priority = static_cast<float>(1 + i % 3);
    likely[add_row(writer, i, priority)] = priority;
  }
  const auto sampler = new_sampler(tables);
  std::map<std::uint64_t, std::uint64_t> second;
  for (int i = 0; i < 20'000; ++i) {
    Samples samples(2);
    REQUIRE(samples.from(*sampler, true).ok());
    REQUIRE((samples.indices[0] == heavy || samples.indices[1] == heavy));
    ++second[samples.indices[0] == heavy ? samples.indices[1] : samples.indices[0]];
  }
  CHECK(fits(second, likely));
}

TEST_CASE("Overwritten samples are replaced by rows not yet sampled") {
  for (const TableSpec& spec : {kUniform, kByPriority}) {
    const auto tables = new_tables({.capacity = 64, .rows_per_chunk = 1}, {spec});
    Writer writer(tables->store(), 1, tables.get());
    for (std::uint64_t i = 0; i < 34; ++i) add_row(writer, i);
    const auto sampler = new_sampler(tables);
    Samples samples(32);
    REQUIRE(samples.from(*sampler, true).ok());
    const std::set sampled(samples.indices.begin(), samples.indices.end());
    bool gone[32] = {};
    gone[3] = gone[20] = true;
    const std::vector<std::uint64_t> before = samples.indices;
    REQUIRE(sampler->resample(samples.sample(), gone, true).ok());
    CHECK(samples.indices[3] != samples.indices[20]);
    CHECK(!sampled.contains(samples.indices[3]));
    CHECK(!sampled.contains(samples.indices[20]));
    for (std::size_t i = 0; i < 32; ++i) CHECK((gone[i] || samples.indices[i] == before[i]));
    // All 34 rows were sampled or replaced.
    CHECK(sampler->resample(samples.sample(), gone, true).code() == Code::kInvalid);
  }
}

TEST_CASE("Rows outside the window are never sampled") {
  const auto tables = new_tables({.capacity = 32, .rows_per_chunk = 4}, {kByPriority});
  Writer writer(tables->store(), 1, tables.get());
  const auto sampler = new_sampler(tables);
  Samples samples(16);
  for (std::uint64_t i = 0; i < 500; ++i) {
    add_row(writer, i, i % 50 == 0 ? 1e6f : 1.0f);
    REQUIRE(samples.from(*sampler).ok());
    for (const std::uint64_t index : samples.indices) CHECK(row_at(tables->store(), index).has_value());
  }
}

TEST_CASE("Sum tree leaves of overwritten rows hide no current row") {
  const auto tables = new_tables({.capacity = 3000, .rows_per_chunk = 8}, {kByPriority}, new_arena(64 * kMiB));
  const auto& store = tables->store();
  Writer writer(store, 1, tables.get());
  for (std::uint64_t i = 0; i < 3000; ++i) add_row(writer, i, 1e6f);
  writer.close();
  const auto sampler = new_sampler(tables);
  Samples samples(4);
  REQUIRE(samples.from(*sampler).ok());
  store_relaxed(header_of(*store).head, store->window().tail);  // all rows leave the window
  store_relaxed(header_of(*store).reserved, std::uint64_t{0});
  CHECK(samples.from(*sampler).code() == Code::kEmpty);
  const std::uint64_t index = add_row(writer, 0, 1e-3f);
  REQUIRE(samples.from(*new_sampler(tables)).ok());
  CHECK(samples.indices[0] == index);
}

TEST_CASE("Corrupt tables end every call and new rows can be sampled") {
  replay::Random random(7);
  for (int trial = 0; trial < 40; ++trial) {
    const auto tables =
        new_tables({.capacity = 100, .rows_per_chunk = 4}, {kByPriority,
                                                            {.kind = SamplerKind::kUniform, .max_times = 2},
                                                            {.kind = SamplerKind::kFifo, .max_times = 1},
                                                            {.kind = SamplerKind::kMaxPriority}});
    Writer writer(tables->store(), 1, tables.get());
    std::vector<std::uint64_t> indices;
    for (std::uint64_t i = 0; i < 150; ++i) indices.push_back(add_row(writer, i));
    std::vector<std::unique_ptr<replay::Sampler>> samplers;
    for (std::size_t i = 0; i < 4; ++i) samplers.push_back(new_sampler(tables, i));
    Samples samples(3);
    for (const auto& sampler : samplers) static_cast<void>(samples.from(*sampler));
    const std::span<std::byte> area = tables->store()->tables_area();
    auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(area.data());
    for (std::size_t at = sizeof(replay::TablesHeader) / 8; at < area.size() / 8; ++at) {
      if (random.below(4) == 0) words[at] = random.below(2) == 0 ? random.next() : random.next() >> random.below(64);
    }
    for (const auto& sampler : samplers) {
      static_cast<void>(samples.from(*sampler));
      static_cast<void>(samples.from(*sampler, true));
      sampler->put_back(samples.sample());
    }
    static_cast<void>(update(*tables, indices, std::vector<double>(indices.size(), 1.0)));
    for (std::uint64_t i = 0; i < 250; ++i) static_cast<void>(add(writer, i, {}));
    CHECK(samples.from(*samplers[0]).ok());
    CHECK(samples.from(*samplers[3]).ok());
  }
}

TEST_CASE("Empty tables and unready rows cannot be sampled") {
  for (const TableSpec& spec : {kUniform, kByPriority}) {
    const auto tables = new_tables({.capacity = 64, .rows_per_chunk = 8}, {spec});
    const auto sampler = new_sampler(tables);
    Samples samples(4);
    CHECK(samples.from(*sampler).code() == Code::kEmpty);
    CHECK(samples.from(*sampler, true).code() == Code::kEmpty);
    Writer writer(tables->store(), 1, tables.get());
    const std::uint64_t index = add_row(writer, 0);
    tables->before_ready(index + 1, std::array{1e30f});  // its writer was killed before the row was ready
    REQUIRE(samples.from(*sampler).ok());
    CHECK(std::ranges::all_of(samples.indices, [&](std::uint64_t sampled) { return sampled == index; }));
  }
}

// guarantee: replay-max-times
TEST_CASE("All samplers together respect max_times and put_back") {
  for (const SamplerKind kind : {SamplerKind::kUniform, SamplerKind::kPrioritized}) {
    const auto tables = new_tables({.capacity = 64, .rows_per_chunk = 8}, {{.kind = kind, .max_times = 3}});
    Writer writer(tables->store(), 1, tables.get());
    for (std::uint64_t i = 0; i < 20; ++i) add_row(writer, i);
    const auto one = new_sampler(tables, 0, 1), other = new_sampler(tables, 0, 2);
    std::map<std::uint64_t, int> times;
    Samples samples(10);
    for (int i = 0; i < 6; ++i) {
      REQUIRE(samples.from(i % 2 == 0 ? *one : *other).ok());
      for (const std::uint64_t index : samples.indices) ++times[index];
    }
    CHECK(times.size() == 20);
    for (const auto& [index, count] : times) CHECK(count == 3);
    Samples more(1);
    CHECK(more.from(*one).code() == Code::kEmpty);
    one->put_back(samples.sample());
    CHECK(samples.from(*other).ok());
    CHECK(more.from(*other).code() == Code::kEmpty);
    add_row(writer, 20);
    CHECK(samples.from(*other).code() == Code::kEmpty);  // too few rows; the failed call takes none
    Samples three(3);
    CHECK(three.from(*other).ok());
  }
}

TEST_CASE("A resampled row is counted once") {
  const auto tables = new_tables({.capacity = 64}, {kUniform, kByPriority});
  Writer writer(tables->store(), 1, tables.get());
  add_row(writer, 0);
  add_row(writer, 1);
  const auto sampler = new_sampler(tables, 1);
  Samples samples(5);
  const bool gone[5] = {true};
  REQUIRE(samples.from(*sampler).ok());
  REQUIRE(sampler->resample(samples.sample(), gone, false).ok());
  REQUIRE(samples.from(*sampler).ok());
  CHECK((*tables)[0].samples() == 0);
  CHECK((*tables)[1].samples() == 10);
}

TEST_CASE("A forked child samples other rows than its parent") {
  const auto tables = new_tables({.capacity = 2000, .rows_per_chunk = 8}, {kUniform});
  Writer writer(tables->store(), 1, tables.get());
  for (std::uint64_t i = 0; i < 1000; ++i) add_row(writer, i);
  const auto sampler = new_sampler(tables);
  Samples samples(8), own(8);
  const Gate sampled;
  std::vector<std::uint64_t> of_child;
  Child child([&] {
    if (!samples.from(*sampler).ok()) return false;
    std::uint64_t sum = 0;
    for (const std::uint64_t index : samples.indices) sum = sum * 31 + index;
    sampled.open(sum);
    return true;
  });
  REQUIRE(own.from(*sampler).ok());
  std::uint64_t sum = 0;
  for (const std::uint64_t index : own.indices) sum = sum * 31 + index;
  CHECK(sampled.wait() != sum);
  REQUIRE(child.succeeded());
}
