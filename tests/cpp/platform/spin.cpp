// Spinning that a program asks for: how long a wait polls, and when it sleeps at once instead.
#include "platform/spin.h"

#include <chrono>
#include <cstdlib>
#include <thread>

#include "support/catch2.h"
#include "support/waits.h"
#include "support/yields.h"

using namespace shmtree;
using namespace shmtree::platform;
using shmtree::test::CountedWaits;

namespace {

constexpr std::int64_t kHourNs = 3'600'000'000'000;

bool never() {
  return false;
}

// Spins repeatedly, each time with a setting that has noted nothing. Returns true if the spins of one round, none of
// which was preempted, made no wait sleep at once.
template <class MakeDeadline>
bool may_spin_on(std::int64_t spin_ns, const MakeDeadline& deadline) {
  for (int round = 0; round < 100; ++round) {
    SpinSetting setting;
    setting.set_ns(spin_ns).value();
    for (int i = 0; i < 2 * wait_policy::kVainSpins; ++i) {
      const WaitContext wait{.deadline = deadline(), .spin = &setting};
      for (Spin spin(wait); spin.is_on();) spin.poll(never);
    }
    if (setting.is_due()) return true;
  }
  return false;
}

// Sets the environment variable SHMTREE_SPIN until the end of the scope.
struct Environment {
  explicit Environment(const char* text) { setenv("SHMTREE_SPIN", text, 1); }
  ~Environment() { unsetenv("SHMTREE_SPIN"); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
};

}  // namespace

TEST_CASE("A wait without a spin setting, or with 0, does not spin") {
  SpinSetting setting;
  CHECK_FALSE(Spin(WaitContext{}).is_on());
  CHECK_FALSE(Spin(WaitContext{.spin = &setting}).is_on());
}

TEST_CASE("A call with no time to wait does not spin") {
  SpinSetting setting;
  setting.set_ns(kHourNs).value();
  CHECK_FALSE(Spin(WaitContext{.deadline = Deadline::immediate(), .spin = &setting}).is_on());
}

TEST_CASE("A spin ends after its time, and after the deadline") {
  for (const bool is_late : {false, true}) {
    SpinSetting setting;
    setting.set_ns(is_late ? kHourNs : 1'000'000).value();
    const WaitContext wait{.deadline = is_late ? Deadline::after_ns(1'000'000) : Deadline::never(), .spin = &setting};
    Spin spin(wait);
    REQUIRE(spin.is_on());
    while (spin.is_on()) CHECK_FALSE(spin.poll(never));
    if (is_late) CHECK((wait.deadline.passed() || !setting.is_due()));  // a spin that is preempted ends sooner
  }
}

TEST_CASE("A spin polls in slices, outside which hooks may run") {
  SpinSetting setting;
  setting.set_ns(kHourNs).value();
  CountedWaits waits;
  WaitContext wait = waits.until(Deadline::never());
  wait.spin = &setting;
  Spin spin(wait);
  CHECK_FALSE(spin.poll(never));
  CHECK(waits.blocks == 1);
}

TEST_CASE("A requested spin does not yield its core") {
  SpinSetting setting;
  setting.set_ns(1'000'000).value();
  const WaitContext wait{.spin = &setting};
  const int before = tests::yields;
  for (Spin spin(wait); spin.is_on();) spin.poll(never);
  CHECK(tests::yields == before);
}

TEST_CASE("A preempted spin makes more and more waits sleep at once") {
  SpinSetting setting;
  setting.set_ns(kHourNs).value();
  const WaitContext wait{.spin = &setting};
  const auto waits_without_spin = [&] {
    Spin spin(wait);
    REQUIRE(spin.is_on());
    int polls = 0;
    spin.poll([&] {
      // Longer than a tick of the coarse clock, and after the first read of the precise one.
      if (++polls == wait_policy::kSpinPollsPerClock + 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      return polls > wait_policy::kSpinPollsPerClock;
    });
    int waits = 0;
    while (!setting.is_due()) ++waits;
    return waits;
  };
  CHECK(waits_without_spin() == wait_policy::kFirstSkips);
  CHECK(waits_without_spin() == 2 * wait_policy::kFirstSkips);
}

TEST_CASE("Several failed spins make waits sleep at once") {
  using Ended = SpinSetting::Ended;
  SpinSetting setting;
  setting.set_ns(kHourNs).value();
  const auto waits_without_spin = [&] {
    int waits = 0;
    while (!setting.is_due()) ++waits;
    return waits;
  };
  for (const int is_first : {1, 0}) {
    for (int i = 1; i < wait_policy::kVainSpins; ++i) setting.note_spin(Ended::kInVain);
    CHECK(waits_without_spin() == 0);
    if (is_first != 0) setting.note_spin(Ended::kReady);  // begins the count anew
  }
  setting.note_spin(Ended::kInVain);
  CHECK(waits_without_spin() == wait_policy::kFirstSkips);
  setting.note_spin(Ended::kInVain);
  CHECK(waits_without_spin() == 2 * wait_policy::kFirstSkips);
  for (int i = 0; i < 10; ++i) setting.note_spin(Ended::kInVain);
  CHECK(waits_without_spin() == wait_policy::kMaxVainSkips);
}

TEST_CASE("Only a spin that takes its whole time counts as failed") {
  CHECK(may_spin_on(kHourNs, [] { return Deadline::after_ns(1000); }));
  CHECK_FALSE(may_spin_on(1000, [] { return Deadline::never(); }));
}

TEST_CASE("A negative spin is invalid and changes nothing") {
  SpinSetting setting;
  setting.set_ns(5).value();
  CHECK(setting.set_ns(-1).code() == Code::kInvalid);
  CHECK(setting.ns() == 5);
}

TEST_CASE("SHMTREE_SPIN is a number of seconds") {
  CHECK(spin_ns_of_environment().value() == 0);
  CHECK((Environment("0.002"), spin_ns_of_environment().value()) == 2'000'000);
  CHECK((Environment("1e-4"), spin_ns_of_environment().value()) == 100'000);
  CHECK((Environment("inf"), spin_ns_of_environment().value()) > kHourNs);
  for (const char* text : {"fast", "-1", "nan", "1s", " 1"}) {
    const Environment set(text);
    const auto spin = spin_ns_of_environment();
    REQUIRE(spin.code() == Code::kInvalid);
    CHECK(spin.error().message.find(text) != std::string::npos);
  }
}

namespace policy = platform::wait_policy;

// --- Spinner: the decision of a waiting call to spin for a moment or to sleep at once

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
