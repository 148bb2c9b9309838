// The loop of calls that sleep at an event: the order of its checks, and the events that end it.
#include <string>
#include <thread>

#include "memory/event.h"
#include "support/arenas.h"
#include "support/catch2.h"
#include "support/waits.h"

using namespace shmtree;
using namespace shmtree::test;
using memory::do_nothing;

namespace {

// A wait at its own event. Records 'r' for each check, in upper case if the event was armed, and 'a' for each
// before_sleep(), in upper case after the first.
class Waiter {
 public:
  template <class Ready, class BeforeSleep>
  Result<bool> wait(const WaitContext& context, Ready ready, BeforeSleep before_sleep) {
    memory::EventWait waiting(event, {arena_->participants(), memory::WaitFor::kRows}, context);
    const auto noted_ready = [&] {
      steps += load_relaxed(event.waiters) != 0 ? 'R' : 'r';
      return ready();
    };
    const auto noted_before_sleep = [&](bool first) {
      steps += first ? 'a' : 'A';
      return before_sleep(first);
    };
    return memory::wait_until(waiting, context, "tests", noted_ready, noted_before_sleep, ready);
  }

  memory::Event event{};
  std::string steps;

 private:
  std::shared_ptr<Arena> arena_ = new_arena();
};

bool never() {
  return false;
}

struct Interrupting final : platform::WaitHooks {
  void before_block() noexcept override {}
  void after_block() noexcept override {}
  bool interrupted() noexcept override { return true; }
};

}  // namespace

TEST_CASE("A wait with a true condition arms and attends to nothing") {
  Waiter waiter;
  CHECK(waiter
            .wait(
                no_wait(), [] { return true; }, do_nothing)
            .value());
  CHECK(waiter.steps == "r");
}

TEST_CASE("A non-blocking wait attends once and rechecks without arming") {
  Waiter waiter;
  CHECK_FALSE(waiter.wait(no_wait(), never, do_nothing).value());
  CHECK(waiter.steps == "rar");
  CHECK(load_relaxed(waiter.event.waiters) == 0);
}

TEST_CASE("A wait rechecks after arming and after its deadline") {
  Waiter waiter;
  CountedWaits waits;
  CHECK_FALSE(waiter.wait(waits.until(Deadline::after_ns(1'000'000)), never, do_nothing).value());
  CHECK(waiter.steps.starts_with("rRa"));
  CHECK(waiter.steps.ends_with("AR"));
  CHECK(waits.blocks >= 1);
}

TEST_CASE("A change by attend() makes the call check before it sleeps") {
  Waiter waiter;
  CountedWaits waits;
  bool is_ready = false;
  const auto before_sleep = [&](bool) -> Result<bool> { return is_ready = true; };
  CHECK(waiter
            .wait(
                waits.until(Deadline::never()), [&] { return is_ready; }, before_sleep)
            .value());
  CHECK(waiter.steps == "rRaR");
  CHECK(waits.blocks == 0);
}

TEST_CASE("A condition that took something is not asked again") {
  Waiter waiter;
  int asked = 0;
  const memory::TakingCondition takes([&] { return ++asked == 3; });  // in before_sleep()
  const auto before_sleep = [&](bool) -> Result<bool> { return takes() ? Result<bool>(true) : Error{Code::kPeerDied}; };
  CHECK(waiter
            .wait(
                patience(), [&] { return takes(); }, before_sleep)
            .value());
  CHECK(waiter.steps == "rRaR");
  CHECK(asked == 3);
}

TEST_CASE("An error of attend() ends the wait") {
  Waiter waiter;
  const auto before_sleep = [](bool) -> Result<bool> { return Error{Code::kPeerDied, "gone"}; };
  const auto came = waiter.wait(patience(), never, before_sleep);
  CHECK(came.code() == Code::kPeerDied);
  CHECK(waiter.steps == "rRa");
}

TEST_CASE("An interrupt error names what the call waited for") {
  Waiter waiter;
  Interrupting hooks;
  const auto came = waiter.wait({Deadline::after_ns(60'000'000'000), &hooks}, never, do_nothing);
  REQUIRE(came.code() == Code::kInterrupted);
  CHECK(came.error().message == "interrupted while waiting for tests");
}

TEST_CASE("A notification ends a wait") {
  Waiter waiter;
  std::atomic<bool> is_ready{false};
  std::jthread publisher([&] {
    while (load_relaxed(waiter.event.waiters) == 0) std::this_thread::yield();
    is_ready = true;
    memory::notify(waiter.event);
  });
  CHECK(waiter
            .wait(
                patience(), [&] { return is_ready.load(); }, do_nothing)
            .value());
}

TEST_CASE("A spin that finds the condition true neither arms nor sleeps") {
  Waiter waiter;
  CountedWaits waits;
  platform::SpinSetting spin;
  spin.set_ns(3'600'000'000'000).value();
  platform::WaitContext context = waits.until(Deadline::never());
  context.spin = &spin;
  int polls = 0;
  CHECK(waiter
            .wait(
                context, [&] { return ++polls > 3; }, do_nothing)
            .value());
  CHECK(waiter.steps == "r");
  CHECK(waits.blocks == 1);
}

TEST_CASE("A wait arms and sleeps after its spin") {
  Waiter waiter;
  platform::SpinSetting spin;
  spin.set_ns(100'000).value();
  CHECK_FALSE(waiter.wait({.deadline = Deadline::after_ns(5'000'000), .spin = &spin}, never, do_nothing).value());
  CHECK(waiter.steps.find('R') != std::string::npos);
}

TEST_CASE("A deadline, a hook or an error ends a long spin") {
  platform::SpinSetting spin;
  spin.set_ns(3'600'000'000'000).value();
  Waiter waiter;
  CHECK_FALSE(waiter.wait({.deadline = Deadline::after_ns(1'000'000), .spin = &spin}, never, do_nothing).value());
  Interrupting hook;
  CHECK(waiter.wait({.hooks = &hook, .spin = &spin}, never, do_nothing).code() == Code::kInterrupted);
  const auto peers_died = [](bool) -> Result<bool> { return Error{Code::kPeerDied, "died"}; };
  CHECK(waiter.wait({.spin = &spin}, never, peers_died).code() == Code::kPeerDied);
}
