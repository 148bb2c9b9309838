// The rate limiter bounds the ratio of sampled to added rows, even if processes time out or are killed.
#include <atomic>
#include <thread>

#include "support/catch2.h"
#include "support/tables.h"

using namespace shmtree;
using namespace shmtree::test;
using replay::RateLimit;
using replay::RateLimiter;

namespace {

std::shared_ptr<Tables> limited(const RateLimit& limit, const std::shared_ptr<Arena>& arena = new_arena()) {
  return new_tables({.capacity = 100, .rows_per_chunk = 4}, {{.kind = SamplerKind::kUniform}}, arena, kLeafBytes,
                    &limit);
}
WaitContext at_once() {
  return {Deadline::immediate()};
}
bool adds(RateLimiter& limit, std::uint64_t rows = 1) {
  for (std::uint64_t i = 0; i < rows; ++i) {
    if (!limit.take_inserts(1, 1, at_once()).ok()) return false;
    limit.use_inserts(1);
  }
  return true;
}
bool takes_samples(RateLimiter& limit, std::uint64_t rows = 1) {
  if (!limit.take_samples(rows, at_once()).ok()) return false;
  limit.use_samples(rows);
  return true;
}

}  // namespace

TEST_CASE("Until min_size rows only adds are allowed") {
  const auto tables = limited({.samples_per_insert = 1, .min_size = 5, .error_buffer = 2});
  RateLimiter& limit = *tables->limiter();
  for (int i = 0; i < 5; ++i) {
    CHECK_FALSE(takes_samples(limit));
    CHECK(adds(limit));
  }
  CHECK(takes_samples(limit));
  CHECK(limit.inserts() == 5);
  CHECK(limit.samples() == 1);
}

// guarantee: replay-rate-limit
TEST_CASE("Adds and samples stay within the error buffer row by row") {
  for (const double ratio : {0.1, 0.5, 1.0, 3.0, 8.0}) {
    const RateLimit terms{.samples_per_insert = ratio, .min_size = 10, .error_buffer = std::max(1.0, ratio) * 1.5};
    const auto tables = limited(terms);
    RateLimiter& limit = *tables->limiter();
    const double offset = ratio * 10;
    replay::Random random(7);
    double inserts = 0, samples = 0;
    for (int i = 0; i < 2000; ++i) {
      if (random.below(2) == 0) {
        const bool may = inserts + 1 <= 10 || (inserts + 1) * ratio - samples <= offset + terms.error_buffer + 1e-9;
        REQUIRE(adds(limit) == may);
        inserts += may;
      } else {
        const bool may = inserts >= 10 && inserts * ratio - samples - 1 >= offset - terms.error_buffer - 1e-9;
        REQUIRE(takes_samples(limit) == may);
        samples += may;
      }
    }
    CHECK(inserts > 50);
    CHECK(limit.inserts() == static_cast<std::uint64_t>(inserts));
    CHECK(limit.samples() == static_cast<std::uint64_t>(samples));
  }
}

TEST_CASE("An impossible rate limit is refused with its numbers") {
  const auto refused = [](const RateLimit& limit, const std::string& number) {
    const auto checked = RateLimiter::checked(limit, 1000);
    return checked.code() == Code::kInvalid && checked.error().message.find(number) != std::string::npos;
  };
  CHECK(refused({.samples_per_insert = 8, .error_buffer = 7.5}, "7.5"));
  CHECK(refused({.samples_per_insert = 0.5, .error_buffer = 0.75}, "0.75"));
  CHECK(refused({.samples_per_insert = 1, .error_buffer = -2}, "-2"));
  CHECK(refused({.samples_per_insert = 0}, "samples_per_insert is 0"));
  CHECK(refused({.samples_per_insert = -1}, "-1"));
  CHECK(refused({.samples_per_insert = std::nan("")}, "nan"));
  CHECK(refused({.min_size = 0}, "min_size is 0"));
  CHECK(refused({.min_size = 1001}, "1001"));
  CHECK(RateLimiter::checked({.samples_per_insert = 8, .min_size = 1000}, 1000).value().error_buffer == Approx(800));
  CHECK(RateLimiter::checked({.samples_per_insert = 0.5}, 1000).value().error_buffer == Approx(2));
}

TEST_CASE("Unused credits are returned and failed samples take none") {
  const auto tables = limited({.samples_per_insert = 1, .min_size = 1, .error_buffer = 2});
  RateLimiter& limit = *tables->limiter();
  CHECK(limit.take_inserts(1, 100, at_once()).value() == 3);
  CHECK(limit.take_inserts(1, 1, at_once()).code() == Code::kFull);
  CHECK(limit.inserts() == 0);  // no row has been added yet
  limit.give_back_inserts(3);
  CHECK(adds(limit, 3));
  CHECK_FALSE(adds(limit));
  CHECK(limit.take_samples(5, at_once()).code() == Code::kEmpty);  // the limit allows four
  CHECK(limit.samples() == 0);
  CHECK(takes_samples(limit, 4));
  CHECK(adds(limit, 4));
}

TEST_CASE("Rows that become ready together are counted together") {
  const auto tables = limited({.samples_per_insert = 1, .min_size = 1, .error_buffer = 1});
  RateLimiter& limit = *tables->limiter();
  CHECK(limit.take_inserts(3, 3, at_once()).value() == 3);  // row by row, only two would be allowed
  limit.use_inserts(3);
  CHECK_FALSE(adds(limit));
  limit.use_inserts(2);
  CHECK(limit.inserts() == 5);
  CHECK(takes_samples(limit, 5));
}

TEST_CASE("Adds and samples of two processes unblock each other") {
  const auto tables = limited({.samples_per_insert = 1, .min_size = 1, .error_buffer = 1});
  Child adder([&] {
    for (int i = 0; i < 500; ++i) {
      if (!tables->limiter()->take_inserts(1, 1, patience())) return false;
      tables->limiter()->use_inserts(1);
    }
    return true;
  });
  for (int i = 0; i < 50; ++i) {
    REQUIRE(tables->limiter()->take_samples(10, patience()).ok());
    tables->limiter()->use_samples(10);
  }
  REQUIRE(adder.succeeded());
  CHECK(tables->limiter()->inserts() == 500);
  CHECK(tables->limiter()->samples() == 500);
}

TEST_CASE("A limiter wait ends at its deadline or on interruption") {
  struct Interrupt final : platform::WaitHooks {
    void before_block() noexcept override {}
    void after_block() noexcept override {}
    bool interrupted() noexcept override { return true; }
  } interrupt;
  const auto tables = limited({.samples_per_insert = 1, .min_size = 1, .error_buffer = 1});
  RateLimiter& limit = *tables->limiter();
  CHECK(limit.take_samples(1, {Deadline::after_ns(1'000'000)}).code() == Code::kEmpty);
  CHECK(limit.take_samples(1, {Deadline::never(), &interrupt}).code() == Code::kInterrupted);
  REQUIRE(adds(limit, 2));
  CHECK(limit.take_inserts(1, 1, {Deadline::after_ns(1'000'000)}).code() == Code::kFull);
  CHECK(limit.take_inserts(1, 1, {Deadline::never(), &interrupt}).code() == Code::kInterrupted);
}

TEST_CASE("Credits of a killed process are returned to waiters") {
  const auto tables = limited({.samples_per_insert = 1, .min_size = 1, .error_buffer = 1});
  const Gate taken, never;
  Child holder([&] {
    const bool all = tables->limiter()->take_inserts(1, 2, at_once()).value() == 2;
    taken.open(all);
    never.wait();
    return true;
  });
  REQUIRE(taken.wait() == 1);
  RateLimiter& limit = *tables->limiter();
  CHECK_FALSE(adds(limit));
  holder.kill_and_wait();
  REQUIRE(limit.take_inserts(2, 2, patience()).value() == 2);
  limit.use_inserts(2);
  CHECK(limit.inserts() == 2);
}

TEST_CASE("Concurrent adds and samples keep exact counts") {
  const auto tables = limited({.samples_per_insert = 2, .min_size = 1, .error_buffer = 4});
  const auto add_some = [&] {
    for (int i = 0; i < 300; ++i) {
      const auto credits = tables->limiter()->take_inserts(1, 2, patience());
      if (!credits) return false;
      tables->limiter()->use_inserts(1);
      if (*credits > 1) tables->limiter()->give_back_inserts(*credits - 1);
    }
    return true;
  };
  const auto sample_some = [&] {
    for (int i = 0; i < 150; ++i) {
      if (!tables->limiter()->take_samples(8, patience())) return false;
      tables->limiter()->use_samples(8);
    }
    return true;
  };
  Child one(add_some), two(sample_some);
  std::atomic<bool> all{true};
  std::thread three([&] { all = all && add_some(); });
  CHECK(one.succeeded());
  CHECK(two.succeeded());
  three.join();
  CHECK(all);
  CHECK(tables->limiter()->inserts() == 600);
  CHECK(tables->limiter()->samples() == 1200);
}

TEST_CASE("A writer at its limit adds nothing until rows are sampled") {
  const auto tables = limited({.samples_per_insert = 1, .min_size = 1, .error_buffer = 2});
  Writer writer(tables->store(), 1, tables.get());
  const Row row(7);
  int added = 0;
  while (writer.add(row.leaves(), {}, at_once()).ok()) ++added;
  CHECK(added == 3);
  CHECK(tables->store()->size() == 3);
  CHECK(tables->limiter()->inserts() == 3);
  CHECK(writer.add(row.leaves(), {}, at_once()).code() == Code::kFull);
  REQUIRE(takes_samples(*tables->limiter(), 4));
  added = 0;
  while (writer.add(row.leaves(), {}, at_once()).ok()) ++added;
  CHECK(added == 4);
}

TEST_CASE("Rows count when ready so that no limit waits for successors") {
  const RateLimit limit{.samples_per_insert = 1, .min_size = 1, .error_buffer = 1};
  const auto tables = new_tables({.capacity = 100, .rows_per_chunk = 4, .ahead = 2}, {{.kind = SamplerKind::kUniform}},
                                 new_arena(), kLeafBytes, &limit);
  Writer writer(tables->store(), 1, tables.get());
  std::uint64_t sampled = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const Row row(i);
    const bool done = i % 7 == 6;
    while (!writer.add(row.leaves(), {.done = done}, at_once()).ok()) {
      REQUIRE(takes_samples(*tables->limiter()));
      ++sampled;
    }
    CHECK(tables->limiter()->inserts() <= sampled + 2 + 2);  // the last rows of an episode become ready together
  }
  CHECK(tables->limiter()->inserts() == 198);  // two rows lack successors
}

TEST_CASE("extend adds rows up to the limit and keeps no credit") {
  const auto tables = limited({.samples_per_insert = 1, .min_size = 10, .error_buffer = 2});
  Writer writer(tables->store(), 1, tables.get());
  const std::vector<Row> rows(30, Row(5));
  const auto first = [&](const auto& of) { return reinterpret_cast<const std::byte*>(of.data()); };
  const std::array<replay::Column, 3> columns{
      {{first(rows[0].number), sizeof(Row)}, {first(rows[0].small), sizeof(Row)}, {first(rows[0].large), sizeof(Row)}}};
  CHECK(writer.extend({.columns = columns, .count = 30}, nullptr, at_once()).code() == Code::kFull);
  CHECK(writer.added() == 12);
  CHECK(tables->limiter()->inserts() == 12);
  REQUIRE(takes_samples(*tables->limiter(), 4));
  CHECK(writer.extend({.columns = columns, .count = 4}, nullptr, at_once()).ok());
  CHECK(tables->limiter()->inserts() == 16);
  CHECK(tables->limiter()->take_inserts(1, 1, at_once()).code() == Code::kFull);
}

TEST_CASE("After a reset the counts begin at zero") {
  const auto tables = limited({.samples_per_insert = 1, .min_size = 3, .error_buffer = 1});
  RateLimiter& limit = *tables->limiter();
  REQUIRE(adds(limit, 3));
  REQUIRE(takes_samples(limit, 1));
  limit.reset();
  CHECK(limit.inserts() == 0);
  CHECK(limit.samples() == 0);
  CHECK_FALSE(takes_samples(limit));
  CHECK(adds(limit, 3));
  CHECK(takes_samples(limit));
}

#if defined(SHMTREE_CRASH_POINTS)

// guarantee: replay-rate-limit
TEST_CASE("A process killed at any store leaves exact counts") {
  std::int64_t stores = 1;
  for (bool killed = true; killed; ++stores) {
    const auto tables = limited({.samples_per_insert = 1, .min_size = 1, .error_buffer = 10});
    RateLimiter& limit = *tables->limiter();
    REQUIRE(adds(limit, 4));
    REQUIRE(takes_samples(limit, 2));
    const Gate done;
    killed = killed_at_change(stores, [&] {
      limit.take_inserts(1, 3, at_once()).value();
      limit.use_inserts(1);
      limit.give_back_inserts(1);
      limit.take_samples(2, at_once()).value();
      limit.give_back_samples(2);
    });
    INFO("killed at change " << stores);
    // Releases the credits of dead processes.
    CHECK(limit.take_samples(50, {Deadline::after_ns(1'000'000)}).code() == Code::kEmpty);
    const std::uint64_t used = limit.inserts() - 4;
    CHECK(used <= 1);
    CHECK(limit.samples() == 2);
    REQUIRE(limit.take_inserts(1, 50, at_once()).value() == 9 - used);
    limit.give_back_inserts(9 - used);
    REQUIRE(takes_samples(limit, 11 + used));
  }
  CHECK(stores > 12);
}

#endif
