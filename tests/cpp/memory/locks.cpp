// Locks between processes: contention, dead owners, stopped owners, and corrupt lock words.
#include <thread>
#include <vector>

#include "memory/event.h"
#include "support/arenas.h"
#include "support/catch2.h"
#include "support/waits.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

// A block of shared memory with a lock and numbers that it guards.
struct Guarded {
  std::atomic<std::uint32_t> lock;
  std::uint64_t first, second;
  static Guarded& in(const Lease& lease) { return *reinterpret_cast<Guarded*>(lease.data()); }
};
Lease new_guarded(Arena& arena) {
  Lease lease = new_lease(arena);
  std::memset(lease.data(), 0, sizeof(Guarded));
  return lease;
}

// Returns the body of a child that takes the lock, reports it, and keeps the lock until it is killed.
template <class Lock>
auto owner_of(Arena& arena, Lock& word, Gate& taken) {
  return [&arena, &word, &taken] {
    const bool ok = arena.lock(word, patience()).ok();
    taken.open(ok);
    pause();
    return true;
  };
}

memory::SleepReason for_a_message(Arena& arena) {
  return {arena.participants(), memory::WaitFor::kMessage};
}

}  // namespace

TEST_CASE("A lock lets one of several processes in at a time") {
  auto arena = new_arena();
  const Lease lease = new_guarded(*arena);
  Guarded& guarded = Guarded::in(lease);
  const std::uint64_t rounds = under_valgrind() ? 200 : 3000;
  const auto count = [&] {
    for (std::uint64_t i = 0; i < rounds; ++i) {
      if (!arena->lock(guarded.lock, patience()).ok()) return false;
      const bool same = guarded.first == guarded.second;
      ++guarded.first;
      if (i % 100 == 0) std::this_thread::yield();
      ++guarded.second;
      arena->unlock(guarded.lock);
      if (!same) return false;
    }
    return true;
  };
  {
    Child one(count), two(count), three(count);
    CHECK(one.succeeded());
    CHECK(two.succeeded());
    CHECK(three.succeeded());
  }
  CHECK(guarded.first == 3 * rounds);
  CHECK(guarded.second == 3 * rounds);
}

TEST_CASE("A lock lets one of several threads in at a time") {
  auto arena = new_arena();
  const Lease lease = new_guarded(*arena);
  Guarded& guarded = Guarded::in(lease);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        if (!arena->lock(guarded.lock, patience()).ok()) return;
        ++guarded.first;
        arena->unlock(guarded.lock);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(guarded.first == 4000);
}

TEST_CASE("The lock of a killed owner is taken over and repaired") {
  auto arena = new_arena();
  const Lease lease = new_guarded(*arena);
  Guarded& guarded = Guarded::in(lease);
  Gate taken;
  Child owner(owner_of(*arena, guarded.lock, taken));
  REQUIRE(taken.wait() == 1);
  owner.kill_and_wait();
  const std::uint64_t reconciles = arena->inspector().stats().reconciles;
  CountedWaits waits;
  REQUIRE(arena->lock(guarded.lock, waits.until(Deadline::immediate())).ok());
  CHECK(waits.blocks == 0);
  CHECK(arena->inspector().stats().reconciles > reconciles);
  CHECK(arena->inspector().stats().participants == 1);
  arena->unlock(guarded.lock);
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("A waiter that sleeps when the owner is killed gets the lock") {
  auto arena = new_arena();
  const Lease lease = new_guarded(*arena);
  Guarded& guarded = Guarded::in(lease);
  Gate taken;
  Child owner(owner_of(*arena, guarded.lock, taken));
  REQUIRE(taken.wait() == 1);
  Child waiter([&] {
    const bool ok = arena->lock(guarded.lock, patience()).ok();
    if (ok) arena->unlock(guarded.lock);
    return ok;
  });
  while ((load_acquire(guarded.lock) & memory::kContended) == 0) std::this_thread::yield();
  owner.kill_and_wait();
  CHECK(waiter.succeeded());
}

TEST_CASE("An allocation takes over the arena lock of a killed owner") {
  auto arena = new_arena();
  Gate taken;
  Child owner(owner_of(*arena, arena->header().arena_lock, taken));
  REQUIRE(taken.wait() == 1);
  owner.kill_and_wait();
  CHECK(arena->allocate(4096, BlockKind::kMessage, no_wait()).ok());
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("A recovery takes over the lock of a killed recovery") {
  auto arena = new_arena();
  Gate taken;
  Child owner(owner_of(*arena, arena->header().reconcile_lock, taken));
  REQUIRE(taken.wait() == 1);
  owner.kill_and_wait();
  memory::request_recovery(arena->header());
  CHECK(arena->reconcile(patience()).ok());
  CHECK(check_arena(*arena) == "");
}

// guarantee: stopped-lock-owner
TEST_CASE("A lock wait times out and names its stopped owner") {
  auto arena = new_arena();
  const Lease lease = new_guarded(*arena);
  Guarded& guarded = Guarded::in(lease);
  Gate taken;
  Child owner(owner_of(*arena, guarded.lock, taken));
  REQUIRE(taken.wait() == 1);
  owner.signal(SIGSTOP);
  owner.wait_until_stopped();
  Status locked = arena->lock(guarded.lock, patience(60));
  REQUIRE_FALSE(locked.ok());
  CHECK(locked.code() == Code::kTimeout);
  CHECK(locked.error().message.find(std::to_string(owner.pid())) != std::string::npos);
  CHECK_FALSE(memory::needs_recovery(arena->header()));
}

TEST_CASE("Recovery behind a stopped owner times out and frees nothing") {
  auto arena = new_arena();
  const Lease channel = Window::create(*arena);
  Window& window = Window::of(*arena, channel.ref());
  OwnedBlock message = new_block(*arena);
  const BlockRef queued = message.ref();
  REQUIRE(window.put(*arena, std::move(message)));
  Gate taken;
  Child owner(owner_of(*arena, window.lock, taken));
  REQUIRE(taken.wait() == 1);
  owner.signal(SIGSTOP);
  owner.wait_until_stopped();
  memory::request_recovery(arena->header());
  CHECK(arena->reconcile(patience(50)).code() == Code::kTimeout);
  CHECK(arena->blocks().is_current(queued));
  CHECK(memory::needs_recovery(arena->header()));
  owner.kill_and_wait();
  REQUIRE(arena->reconcile(patience()).ok());
  CHECK(arena->blocks().is_current(queued));
  CHECK(window.get(*arena) == queued);
}

TEST_CASE("A lock word that no owner wrote is replaced") {
  auto arena = new_arena();
  const Lease lease = new_guarded(*arena);
  Guarded& guarded = Guarded::in(lease);
  for (const std::uint32_t word : {1u, 0x7fffffffu, memory::kContended, memory::kHeld, 0xdeadbeefu, 0xffffffffu,
                                   memory::kHeld | memory::make_identity(1023, 5)}) {
    INFO("word " << word);
    guarded.lock = word;
    REQUIRE(arena->lock(guarded.lock, no_wait()).ok());
    arena->unlock(guarded.lock);
    CHECK(guarded.lock == 0);
    CHECK_FALSE(memory::needs_recovery(arena->header()));
  }
}

TEST_CASE("Damaged lock words of the arena are replaced") {
  auto arena = new_arena();
  arena->header().arena_lock = 0xdeadbeef;
  arena->header().reconcile_lock = 0xfeedface;
  CHECK(arena->allocate(4096, BlockKind::kMessage, no_wait()).ok());
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("An interrupt ends the wait for a lock") {
  struct Interrupt final : WaitHooks {
    void before_block() noexcept override {}
    void after_block() noexcept override {}
    bool interrupted() noexcept override { return true; }
  } hooks;
  auto arena = new_arena();
  const Lease lease = new_guarded(*arena);
  Guarded& guarded = Guarded::in(lease);
  REQUIRE(arena->lock(guarded.lock, patience()).ok());
  std::thread other([&] {
    CHECK(arena->lock(guarded.lock, WaitContext{Deadline::never(), &hooks}).code() == Code::kInterrupted);
  });
  other.join();
  arena->unlock(guarded.lock);
}

TEST_CASE("An event wakes a waiter in another process") {
  auto arena = new_arena();
  const Lease lease = new_lease(*arena);
  auto& event = *new (lease.data()) memory::Event{};
  auto& published = *new (lease.data() + 64) std::atomic<std::uint32_t>(0);
  Child waiter([&] {
    const WaitContext wait = patience();
    memory::EventWait waiting(event, for_a_message(*arena), wait);
    while (true) {
      waiting.arm();
      if (load_acquire(published) != 0) return true;
      if (waiting.sleep() == memory::EventWait::Wake::kTimedOut) return false;
    }
  });
  while (load_acquire(event.waiters) == 0) std::this_thread::yield();
  store_release(published, 1u);
  memory::notify(event);
  CHECK(waiter.succeeded());
}

TEST_CASE("A publisher that dies before its wake-up only delays waiters") {
  auto arena = new_arena();
  const Lease lease = new_lease(*arena);
  auto& event = *new (lease.data()) memory::Event{};
  auto& published = *new (lease.data() + 64) std::atomic<std::uint32_t>(0);
  const WaitContext wait = patience();
  memory::EventWait waiting(event, for_a_message(*arena), wait);
  waiting.arm();
  Child publisher([&] {
    store_release(published, 1u);
    raise(SIGKILL);
    return true;
  });
  while (load_acquire(published) == 0) REQUIRE(waiting.sleep() == memory::EventWait::Wake::kRecheck);
}

TEST_CASE("Notifying an event without waiters keeps its sequence") {
  memory::Event event{};
  memory::notify(event);
  memory::notify_all(event);
  CHECK(event.sequence == 0);
}

TEST_CASE("A wait that was over before it slept does not sleep") {
  struct Over final : platform::WaitHooks {
    void before_block() noexcept override { ++blocks; }
    void after_block() noexcept override {}
    bool interrupted() noexcept override { return true; }
    bool ended() const noexcept override { return true; }
    int blocks = 0;
  } hooks;
  const auto arena = new_arena();
  memory::Event event{};
  const WaitContext wait{platform::Deadline::never(), &hooks};
  memory::EventWait waiting(event, for_a_message(*arena), wait);
  waiting.arm();
  CHECK(waiting.sleep() == memory::EventWait::Wake::kInterrupted);
  CHECK(hooks.blocks == 0);
}
