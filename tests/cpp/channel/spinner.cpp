// The decision of a waiting call to spin for a moment or to sleep at once.
#include "channel/spinner.h"

#include <chrono>
#include <thread>

#include "support/catch2.h"
#include "support/yields.h"

using namespace shmtree;
using channel::Spinner;
using platform::Deadline;
namespace policy = platform::wait_policy;

namespace {

bool spins_without_result(Spinner& spinner) {
  bool looked = false;
  const auto never = [&] {
    looked = true;
    return false;
  };
  REQUIRE_FALSE(spinner.until(never, 1, {Deadline::never()}));
  return looked;
}

// Returns the number of waits that slept at once before the next one that spun.
int waits_until_a_try(Spinner& spinner) {
  int waits = 0;
  while (!spins_without_result(spinner)) {
    REQUIRE(++waits < 5000);
  }
  return waits;
}

}  // namespace

TEST_CASE("Spins that fail are retried more and more rarely") {
  if (platform::usable_cores() < 2) return;
  Spinner spinner;
  int first = 0;
  while (spins_without_result(spinner)) REQUIRE(++first < 10);
  REQUIRE(first > 0);
  CHECK(waits_until_a_try(spinner) < 32);
  CHECK(waits_until_a_try(spinner) == 63);
  CHECK(waits_until_a_try(spinner) == 127);
}

TEST_CASE("A successful retry makes every wait spin again") {
  if (platform::usable_cores() < 2) return;
  Spinner spinner;
  while (spins_without_result(spinner)) {
  }
  int waits = 0;
  const auto at_once = [] { return true; };
  while (!spinner.until(at_once, 1, {Deadline::never()})) REQUIRE(++waits < 32);
  CHECK(spins_without_result(spinner));
}

TEST_CASE("Single failed spins neither stop nor shorten later spins") {
  if (platform::usable_cores() < 2) return;
  Spinner spinner;
  const auto at_once = [] { return true; };
  for (int i = 0; i < 8; ++i) REQUIRE(spinner.until(at_once, 1, {Deadline::never()}));
  for (int i = 0; i < 4; ++i) {
    const std::int64_t begin = platform::monotonic_ns();
    std::int64_t last = begin;
    const auto never = [&] {
      last = platform::monotonic_ns();
      return false;
    };
    REQUIRE_FALSE(spinner.until(never, 1, {Deadline::never()}));
    CHECK(last - begin >= 50'000);
  }
}

TEST_CASE("A spin that was preempted counts as failed") {
  if (platform::usable_cores() < 2) return;
  Spinner spinner;
  const auto spins = [&] {
    int looks = 0;
    const auto ready_after_a_slice = [&] {
      if (++looks == 20) std::this_thread::sleep_for(std::chrono::nanoseconds(2 * policy::kPreemptedNs));
      return looks >= 20;
    };
    return spinner.until(ready_after_a_slice, 1, {Deadline::never()});
  };
  int first = 0;
  while (spins()) REQUIRE(++first < 10);
  CHECK(first > 0);
}

TEST_CASE("A spin does not yield its core") {
  if (platform::usable_cores() < 2) return;
  Spinner spinner;
  const int before = tests::yields;
  spins_without_result(spinner);
  CHECK(tests::yields == before);
}

TEST_CASE("A call that must not wait does not spin") {
  Spinner spinner;
  bool looked = false;
  const auto look = [&] { return looked = true; };
  CHECK_FALSE(spinner.until(look, 1, {Deadline::immediate()}));
  CHECK_FALSE(looked);
}

TEST_CASE("After an immediate success later waits begin with a pause") {
  if (platform::usable_cores() < 2) return;
  Spinner spinner;
  const auto first_poll_ns = [&] {
    const std::int64_t begin = platform::monotonic_ns();
    std::int64_t first = -1;
    const auto eight = [&] {
      if (first < 0) first = platform::monotonic_ns() - begin;
      return 8;
    };
    REQUIRE(spinner.until(eight, 8, {Deadline::never()}));
    return first;
  };
  for (int i = 0; i < 1000; ++i) first_poll_ns();  // at least one of these ends at once
  for (int i = 0; i < 100; ++i) REQUIRE(first_poll_ns() >= 250);
}
