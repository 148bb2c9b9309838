// The decision of a thread that woke another one to yield its core.
#include "memory/event.h"

#include <chrono>
#include <thread>

#include "platform/atomics.h"
#include "platform/wait_policy.h"
#include "support/catch2.h"
#include "support/yields.h"

using namespace shmtree;
using tests::yields;
namespace policy = platform::wait_policy;

namespace {

// Notifies the event as if a thread slept there. Returns true if the wake-up yielded.
bool yields_at_wake(memory::Event& event) {
  const int before = yields;
  platform::store_relaxed(event.waiters, 1u);
  memory::notify(event);
  REQUIRE(platform::load_relaxed(event.waiters) == 0);
  return yields != before;
}

bool yields_at_rare_wake(memory::Event& event) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(2 * policy::kRareWakeNs));
  return yields_at_wake(event);
}

}  // namespace

TEST_CASE("A thread yields its core to the one it wakes after a pause") {
  memory::Event event{};
  // After a yield that takes long, because the machine is busy, some wake-ups do not yield.
  for (int wakes = 0, in_a_row = 0; in_a_row < 2; ++wakes) {
    REQUIRE(wakes <= 2 * policy::kMaxUnoffered);
    in_a_row = yields_at_rare_wake(event) ? in_a_row + 1 : 0;
  }
}

TEST_CASE("Wake-ups in quick succession do not yield each time") {
  memory::Event event{};
  int count = 0;
  for (int i = 0; i < 1000; ++i) count += yields_at_wake(event);
  CHECK(count < 1000);
}

TEST_CASE("After a costly yield the next wake-ups do not yield") {
  memory::Event event{};
  tests::core_kept_ns = 2 * policy::kCoreWasKeptNs;
  int wakes = 0;
  while (!yields_at_rare_wake(event)) REQUIRE(++wakes <= policy::kMaxUnoffered);
  tests::core_kept_ns = 0;
  for (int i = 0; i < policy::kFirstUnoffered; ++i) CHECK_FALSE(yields_at_rare_wake(event));
}

TEST_CASE("A wake-up without sleepers does not yield") {
  memory::Event event{};
  std::this_thread::sleep_for(std::chrono::nanoseconds(2 * policy::kRareWakeNs));
  const int before = yields;
  memory::notify(event);
  CHECK(yields == before);
}
