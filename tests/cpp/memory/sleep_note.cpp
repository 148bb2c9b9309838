// Shared-memory records of sleeping threads, and the time that they slept.
#include <deque>
#include <limits>

#include "memory/participants.h"
#include "platform/clock.h"
#include "platform/machine.h"
#include "support/arenas.h"
#include "support/catch2.h"

using namespace shmtree;
using namespace shmtree::test;
using memory::Participant;
using memory::SleepNote;
using memory::SleepReason;
using memory::SleepTime;
using memory::Wait;
using memory::WaitFor;

namespace {

// A SleepTime in shared memory, with the reasons of the sleeps that it counts.
class Slept {
 public:
  Slept() { std::memset(lease_.data(), 0, sizeof(SleepTime)); }
  Arena& arena() { return *arena_; }
  SleepTime& time() { return *reinterpret_cast<SleepTime*>(lease_.data()); }
  SleepReason reason(WaitFor what = WaitFor::kMessage, std::uint64_t about = 7) {
    return {arena_->participants(), what, about, &time()};
  }
  Participant& mine() { return arena_->participants().slot_of_identity(arena_->identity().value()); }
  std::uint64_t ns() { return time().slept_ns.load(); }

 private:
  std::shared_ptr<Arena> arena_ = new_arena();
  Lease lease_ = new_lease(*arena_);
};

std::size_t places_taken(const Participant& participant) {
  std::size_t taken = 0;
  for (const Wait& place : participant.waits) taken += place.what.load() != 0;
  return taken;
}
void advance_time() {
  const std::int64_t begin = monotonic_ns();
  while (monotonic_ns() - begin < 2'000'000) relax_cpu();
}
std::uint64_t passed_since(std::int64_t begin) {
  return static_cast<std::uint64_t>(monotonic_ns() - begin);
}

}  // namespace

// guarantee: sleep-reasons
TEST_CASE("A sleep is recorded in its participant while it lasts") {
  Slept slept;
  const SleepReason reason = slept.reason(WaitFor::kSpace, 99);
  {
    const SleepNote asleep(reason, 12345, monotonic_ns());
    const Wait& place = slept.mine().waits[0];
    CHECK(static_cast<WaitFor>(place.what.load()) == WaitFor::kSpace);
    CHECK(place.about == 99);
    CHECK(place.since_ns == 12345);
    CHECK(place.thread == thread_id());
    CHECK_FALSE(slept.time().sleepers.is_empty());
  }
  CHECK(places_taken(slept.mine()) == 0);
  CHECK(slept.time().sleepers.is_empty());
  CHECK(slept.time().since_ns == 0);
}

TEST_CASE("Sleeps beyond the maximum replace no recorded ones") {
  Slept slept;
  const SleepReason reason = slept.reason();
  std::deque<SleepNote> asleep;
  for (std::uint32_t i = 0; i < memory::kMaxWaits + 3; ++i) asleep.emplace_back(reason, i + 1, monotonic_ns());
  CHECK(places_taken(slept.mine()) == memory::kMaxWaits);
  asleep.pop_back();
  CHECK(places_taken(slept.mine()) == memory::kMaxWaits);
  CHECK_FALSE(slept.time().sleepers.is_empty());
  asleep.pop_front();
  CHECK(places_taken(slept.mine()) == memory::kMaxWaits - 1);
  asleep.clear();
  CHECK(places_taken(slept.mine()) == 0);
  CHECK(slept.time().sleepers.is_empty());
}

// guarantee: sleep-times
TEST_CASE("Overlapping sleep time is counted once in any order") {
  Slept slept;
  const SleepReason reason = slept.reason();
  const std::int64_t begin = monotonic_ns();
  std::deque<SleepNote> asleep;
  for (int i = 0; i < 3; ++i) asleep.emplace_back(reason, begin, monotonic_ns());
  const std::int64_t all_asleep = monotonic_ns();
  for (int i = 0; i < 2; ++i) {  // a sleep within the time of other sleeps changes nothing
    advance_time();
    const SleepNote short_one(reason, begin, monotonic_ns());
    advance_time();
  }
  asleep.pop_front();
  advance_time();
  const std::uint64_t least = passed_since(all_asleep);
  asleep.clear();
  CHECK(slept.ns() >= least);
  CHECK(slept.ns() <= passed_since(begin));
}

// guarantee: sleep-times
TEST_CASE("Time without a sleeper is not counted") {
  Slept slept;
  const SleepReason reason = slept.reason();
  std::uint64_t most = 0;
  for (int i = 0; i < 3; ++i) {
    const std::int64_t begin = monotonic_ns();
    { const SleepNote asleep(reason, begin, monotonic_ns()); }
    most += passed_since(begin);
    advance_time();
  }
  CHECK(slept.ns() > 0);
  CHECK(slept.ns() <= most);
}

TEST_CASE("Sleep of two processes is counted once") {
  Slept slept;
  const SleepReason reason = slept.reason();
  Gate asleep_too, may_end;
  const std::int64_t begin = monotonic_ns();
  Child child([&] {
    slept.arena().identity().value();
    const SleepNote asleep(reason, begin, monotonic_ns());
    asleep_too.open();
    may_end.wait();
    return true;
  });
  asleep_too.wait();
  { const SleepNote asleep(reason, begin, monotonic_ns()); }
  CHECK_FALSE(slept.time().sleepers.is_empty());
  CHECK(slept.time().since_ns != 0);
  may_end.open();
  CHECK(child.succeeded());
  CHECK(slept.time().sleepers.is_empty());
  CHECK(slept.ns() <= passed_since(begin));
}

// guarantee: sleep-times
TEST_CASE("A sleep that a kill left open is not counted afterwards") {
  Slept slept;
  const SleepReason reason = slept.reason();
  slept.time().sleepers.add(1000);
  slept.time().since_ns = monotonic_ns() - 3'600'000'000'000;
  const std::int64_t begin = monotonic_ns();
  { const SleepNote asleep(reason, begin, monotonic_ns()); }
  CHECK(slept.ns() <= passed_since(begin));
}

TEST_CASE("Impossible sleep words do not distort the sleep time") {
  Slept slept;
  const SleepReason reason = slept.reason();
  for (const std::int64_t word :
       {std::numeric_limits<std::int64_t>::min(), std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    slept.time().since_ns = word;
    const std::int64_t begin = monotonic_ns();
    const std::uint64_t before = slept.ns();
    { const SleepNote asleep(reason, begin, begin); }
    CHECK(slept.ns() - before <= passed_since(begin));
  }
}

// guarantee: sleep-reasons
TEST_CASE("A reused slot has no sleeps of its previous owner") {
  Slept slept;
  const SleepReason reason = slept.reason();
  Gate asleep_too;
  Child child([&] {
    slept.arena().identity().value();
    const SleepNote asleep(reason, 1, monotonic_ns());
    asleep_too.open();
    pause();
    return true;
  });
  asleep_too.wait();
  child.kill_and_wait();
  const std::uint32_t used = slept.arena().participants().used_slots();
  slept.arena().participants().check(0);
  slept.arena().reconcile(patience()).value();
  Child next([&] {
    const auto me = slept.arena().identity().value();
    return memory::slot_of(me) < used && places_taken(slept.arena().participants().slot_of_identity(me)) == 0;
  });
  CHECK(next.succeeded());
}
