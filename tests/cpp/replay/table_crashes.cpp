// Writers, updaters and samplers of tables are killed anywhere, or run at the same time. Sampled rows exist, the sums
// equal those of the leaves, and no process blocks.
#include <atomic>
#include <map>
#include <thread>

#include "support/catch2.h"
#include "support/samples.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

const TableSpec kByPriority{.kind = SamplerKind::kPrioritized, .alpha = 1, .eps = 0};

double sum_of(const Tables& tables) {
  double sum = 0;
  for (std::uint64_t slot = 0; slot < tables[0].leaves().slots(); ++slot) sum += tables[0].leaves().weight(slot);
  return sum;
}
// Returns the sampler's sum of all weights.
double sum_known_to(replay::Sampler& sampler) {
  Samples one(1);
  one.from(sampler).value();
  double probability = 0;
  sampler.describe(one.sample(), {&probability, 1}, {}, 1, false);
  return one.weights[0] / probability;
}
bool is_good_sample(const Tables& tables, replay::Sampler& sampler, std::size_t rows = 32) {
  Samples samples(rows);
  if (!samples.from(sampler).ok()) return false;
  for (std::size_t i = 0; i < rows; ++i) {
    const auto number = row_at(tables.store(), samples.indices[i]);
    if (!number && tables.store()->has_row(samples.indices[i] / tables.store()->shape().rows_per_chunk,
                                           samples.indices[i] % tables.store()->shape().rows_per_chunk)) {
      return false;  // torn
    }
  }
  return true;
}
void update_some(Tables& tables, replay::Sampler& sampler, replay::Random& random, bool as_own) {
  Samples samples(16);
  if (!samples.from(sampler).ok()) return;
  std::vector<double> priorities(16);
  for (double& priority : priorities) priority = random.unit();
  bool applied[16];
  tables.update(0, samples.indices, priorities, applied, as_own ? sampler.watch() : nullptr).value();
}

}  // namespace

// guarantee: replay-priorities
TEST_CASE("The sum of a sampler equals the leaves after any changes") {
  const auto tables = new_tables({.capacity = 3000, .rows_per_chunk = 8}, {kByPriority}, new_arena(64 * kMiB));
  Writer writer(tables->store(), 1, tables.get());
  const auto one = new_sampler(tables, 0, 1), other = new_sampler(tables, 0, 2);
  replay::Random random(5);
  for (std::uint64_t i = 0; i < 2000; ++i) add_row(writer, i, static_cast<float>(random.unit()));
  for (std::uint64_t i = 0; i < 3000; ++i) {
    if (i % 3 == 0) add_row(writer, i, static_cast<float>(1e6 * random.unit()));
    update_some(*tables, i % 2 == 0 ? *one : *other, random, i % 5 != 0);
    if (i % 100 != 99) continue;
    CHECK(sum_known_to(*one) == Approx(sum_of(*tables)).epsilon(1e-9));
    CHECK(sum_known_to(*other) == Approx(sum_of(*tables)).epsilon(1e-9));
  }
}

TEST_CASE("The sum is right to 1e-9 after a hundred million changes", "[.][slow]") {
  const auto tables = new_tables({.capacity = 3000, .rows_per_chunk = 8}, {kByPriority}, new_arena(64 * kMiB));
  Writer writer(tables->store(), 1, tables.get());
  for (std::uint64_t i = 0; i < 2000; ++i) add_row(writer, i);
  const auto sampler = new_sampler(tables);
  Samples samples(1000);
  std::vector<double> priorities(1000);
  const auto applied = std::make_unique<bool[]>(1000);
  replay::Random random(5);
  for (int i = 0; i < 100'000; ++i) {
    REQUIRE(samples.from(*sampler).ok());
    for (double& priority : priorities) priority = 1e3 * random.unit();
    tables->update(0, samples.indices, priorities, {applied.get(), 1000}, sampler->watch()).value();
  }
  CHECK(sum_known_to(*sampler) == Approx(sum_of(*tables)).epsilon(1e-9));
}

TEST_CASE("Weights match a plain map for random operations") {
  const auto seed = GENERATE(1u, 2u, 3u);
  INFO("seed " << seed);
  replay::Random random(seed);
  const auto tables = new_tables({.capacity = 100, .rows_per_chunk = 4}, {kByPriority});
  Writer writer(tables->store(), 1, tables.get());
  const auto sampler = new_sampler(tables, 0, seed);
  std::map<std::uint64_t, float> model;
  double largest = 1;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    if (random.below(3) != 0) {
      const bool given = random.below(2) == 0;
      const auto priority = given ? static_cast<float>(random.unit() * 2) : static_cast<float>(largest);
      if (given) largest = std::max<double>(largest, priority);
      model[given ? add_row(writer, i, priority) : add_row(writer, i)] = priority;
    } else if (!model.empty()) {
      std::vector<std::uint64_t> indices;
      std::vector<double> priorities;
      for (const auto& [index, weight] : model) {
        if (random.below(10) != 0) continue;
        indices.push_back(index);
        priorities.push_back(static_cast<float>(random.unit() * 2));
      }
      const std::vector<bool> applied = update(*tables, indices, priorities).value();
      for (std::size_t at = 0; at < indices.size(); ++at) {
        if (applied[at]) model[indices[at]] = static_cast<float>(priorities[at]);
        if (applied[at]) largest = std::max(largest, priorities[at]);
      }
    }
    std::erase_if(model, [&](const auto& row) { return !tables->store()->is_in_window(row.first / 4); });
    REQUIRE(tables->max_priority(0) == largest);
    for (const auto& [index, weight] : model) REQUIRE(weight_at(*tables, index) == weight);
    Samples samples(4);
    if (model.empty()) continue;
    REQUIRE(samples.from(*sampler).ok());
    for (std::size_t at = 0; at < 4; ++at) REQUIRE(model.at(samples.indices[at]) == samples.weights[at]);
  }
}

TEST_CASE("Threads that add and update and sample see valid rows") {
  const auto tables = new_tables({.capacity = 64, .rows_per_chunk = 4, .streams = 2}, {kByPriority});
  Writer first(tables->store(), 9, tables.get());
  for (std::uint64_t i = 0; i < 10; ++i) add_row(first, i);
  std::atomic<bool> good{true};
  std::vector<std::thread> threads;
  for (std::uint32_t stream = 1; stream <= 2; ++stream) {
    threads.emplace_back([&, stream] {
      Writer writer(tables->store(), stream, tables.get());
      for (std::uint64_t i = 0; i < 3000; ++i) add_row(writer, i, static_cast<float>(i % 5));
    });
  }
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    threads.emplace_back([&, seed] {
      const auto sampler = new_sampler(tables, 0, seed);
      replay::Random random(seed);
      for (int i = 0; i < 500; ++i) {
        update_some(*tables, *sampler, random, i % 2 == 0);
        good = good && is_good_sample(*tables, *sampler);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(good);
  const auto sampler = new_sampler(tables);
  CHECK(sum_known_to(*sampler) == Approx(sum_of(*tables)).epsilon(1e-9));
}

// guarantee: replay-no-locks
TEST_CASE("Frequent kills of writers and updaters leave valid samples") {
  const auto tables = new_tables({.capacity = 256, .rows_per_chunk = 8, .streams = 4},
                                 {kByPriority, {.kind = SamplerKind::kUniform, .max_times = 3}});
  Writer first(tables->store(), 9, tables.get());
  for (std::uint64_t i = 0; i < 100; ++i) add_row(first, i);
  const auto sampler = new_sampler(tables);
  replay::Random random(3);
  for (std::uint64_t round = 0; round < 40; ++round) {
    const std::uint64_t delay_us = random.below(10'000);
    Child writer([&] {
      Writer own(tables->store(), 1, tables.get());
      for (std::uint64_t i = 0;; ++i) add_row(own, i, static_cast<float>(i % 7));
      return true;
    });
    Child updater([&] {
      const auto own = new_sampler(tables, 0, round), once = new_sampler(tables, 1, round);
      replay::Random numbers(round);
      for (;;) {
        update_some(*tables, *own, numbers, true);
        Samples samples(8);
        if (samples.from(*once).ok() && numbers.below(2) == 0) once->put_back(samples.sample());
      }
      return true;
    });
    const std::int64_t until = platform::monotonic_ns() + static_cast<std::int64_t>(delay_us) * 1000;
    do {
      REQUIRE(is_good_sample(*tables, *sampler));
    } while (platform::monotonic_ns() < until);
    writer.kill_and_wait();
    updater.kill_and_wait();
    tables->store()->arena()->participants().check(0);
    REQUIRE(tables->store()->arena()->reconcile(patience()).ok());
  }
  for (std::uint64_t i = 0; i < 600; ++i) add_row(first, i);
  const auto fresh = new_sampler(tables);
  CHECK(sum_known_to(*fresh) == Approx(sum_of(*tables)).epsilon(1e-9));
  Samples all(tables->store()->size());
  CHECK(all.from(*fresh, true).ok());
}

#if defined(SHMTREE_CRASH_POINTS)

// guarantee: replay-no-locks
TEST_CASE("A process killed at any store leaves usable tables") {
  std::int64_t stores = 1;
  for (bool killed = true; killed; ++stores) {
    const auto tables =
        new_tables({.capacity = 24, .rows_per_chunk = 4}, {kByPriority, {.kind = SamplerKind::kFifo, .max_times = 1}});
    Writer writer(tables->store(), 1, tables.get());
    std::vector<std::uint64_t> indices;
    for (std::uint64_t i = 0; i < 20; ++i) indices.push_back(add_row(writer, i));
    const auto sampler = new_sampler(tables), once = new_sampler(tables, 1);
    REQUIRE(is_good_sample(*tables, *sampler));
    killed = killed_at_change(stores, [&] {
      Writer own(tables->store(), 2, tables.get());
      for (std::uint64_t i = 0; i < 3; ++i) add_row(own, i, 3.0f);
      const auto mine = new_sampler(tables, 0, 3), order = new_sampler(tables, 1, 3);
      update(*tables, {indices[15], indices[16]}, {5.0, 6.0}).value();
      Samples samples(3);
      samples.from(*order).value();
      order->put_back(samples.sample());
      samples.from(*order).value();
      samples.from(*mine).value();
    });
    INFO("killed at change " << stores);
    tables->store()->arena()->participants().check(0);
    REQUIRE(tables->store()->arena()->reconcile(patience()).ok());
    REQUIRE(is_good_sample(*tables, *sampler));
    REQUIRE(update(*tables, {indices[17]}, {50.0}).value()[0] == tables->store()->is_in_window(indices[17] / 4));
    for (std::uint64_t i = 0; i < 30; ++i) add_row(writer, 100 + i);
    REQUIRE(is_good_sample(*tables, *sampler));
    Samples one(1);
    std::uint64_t last = 0;
    while (one.from(*once).ok()) {
      REQUIRE(one.indices[0] > last);
      last = one.indices[0];
    }
    REQUIRE(sum_known_to(*new_sampler(tables)) == Approx(sum_of(*tables)).epsilon(1e-9));
  }
  CHECK(stores > 60);
}

#endif
