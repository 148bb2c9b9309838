// Tables of wake pipes: which pipes senders find while a table changes, after its owner died, and if the table is
// damaged.
#include "memory/wake_table.h"

#include <poll.h>

#include <array>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "support/crash_states.h"
#include "support/stepped_child.h"

using namespace shmtree;
using namespace shmtree::test;
using memory::Identity;

namespace {

BlockRef channel_of(std::uint32_t number) {
  return BlockRef{.id = BlockId::make(12, number), .generation = 1};
}
WakePipe new_pipe() {
  return WakePipe::open(WakeKind::kBytes).value();
}
bool is_readable(const WakePipe& pipe) {
  pollfd entry{pipe.number(), POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}
Identity own_identity(Arena& arena) {
  return arena.identity().value();
}
std::uint32_t own_slot(Arena& arena) {
  return memory::slot_of(own_identity(arena));
}
void set(Arena& arena, std::uint32_t channel, unsigned end, const WakePipe& pipe) {
  arena.wake_table().set(own_identity(arena), channel_of(channel), end, pipe.address()).value();
}
void clear(Arena& arena, std::uint32_t channel, unsigned end) {
  arena.wake_table().clear(own_identity(arena), channel_of(channel), end);
}
bool wake(Arena& arena, std::uint32_t slot, std::uint32_t channel, unsigned end) {
  return arena.wake_table().wake(slot, channel_of(channel), end);
}
std::uint32_t entries_of(Arena& arena, std::uint32_t slot) {
  return load_relaxed(arena.participants().slot(slot).wake_entries);
}

}  // namespace

TEST_CASE("Each end of a channel has its own wake pipe") {
  const auto arena = new_arena();
  const std::uint32_t me = own_slot(*arena);
  const std::array<WakePipe, 4> pipes{new_pipe(), new_pipe(), new_pipe(), new_pipe()};
  for (std::uint32_t i = 0; i < 4; ++i) set(*arena, i / 2, i % 2, pipes[i]);
  for (std::uint32_t i = 0; i < 4; ++i) {
    REQUIRE(wake(*arena, me, i / 2, i % 2));
    for (std::uint32_t j = 0; j < 4; ++j) CHECK(is_readable(pipes[j]) == (i == j));
    pipes[i].drain();
  }
  CHECK_FALSE(wake(*arena, me, 2, 0));
  CHECK_FALSE(wake(*arena, me + 1, 0, 0));
}

TEST_CASE("A new wake pipe of an end replaces the old one") {
  const auto arena = new_arena();
  const WakePipe old = new_pipe(), fresh = new_pipe();
  set(*arena, 1, 0, old);
  set(*arena, 1, 0, fresh);
  CHECK(entries_of(*arena, own_slot(*arena)) == 1);
  CHECK(wake(*arena, own_slot(*arena), 1, 0));
  CHECK((is_readable(fresh) && !is_readable(old)));
}

TEST_CASE("A cleared wake pipe is not woken and its entry is reused") {
  const auto arena = new_arena();
  const std::uint32_t me = own_slot(*arena);
  const WakePipe pipe = new_pipe();
  for (std::uint32_t i = 0; i < 5; ++i) set(*arena, i, 0, pipe);
  clear(*arena, 1, 0);
  CHECK_FALSE(wake(*arena, me, 1, 0));
  CHECK(entries_of(*arena, me) == 5);
  set(*arena, 9, 1, pipe);
  CHECK(entries_of(*arena, me) == 5);
  CHECK(wake(*arena, me, 9, 1));
  for (const std::uint32_t i : {3u, 4u, 2u, 0u}) clear(*arena, i, 0);
  CHECK(entries_of(*arena, me) == 2);
  clear(*arena, 9, 1);
  CHECK(entries_of(*arena, me) == 0);
}

TEST_CASE("A full wake table refuses one more end") {
  const auto arena = new_arena();
  const std::uint32_t me = own_slot(*arena);
  const WakePipe pipe = new_pipe();
  for (std::uint32_t i = 0; i < memory::kMaxWakeEntries; ++i) set(*arena, i, 1, pipe);
  const Status one_more = arena->wake_table().set(own_identity(*arena), channel_of(1), 0, pipe.address());
  REQUIRE(one_more.code() == Code::kUnavailable);
  CHECK(one_more.error().message.find("4096") != std::string::npos);
  CHECK(wake(*arena, me, memory::kMaxWakeEntries - 1, 1));
  clear(*arena, 7, 1);
  set(*arena, 1, 0, pipe);
  CHECK(wake(*arena, me, 1, 0));
}

TEST_CASE("A forked child has its own wake table") {
  const auto arena = new_arena();
  const WakePipe pipe = new_pipe();
  set(*arena, 1, 0, pipe);
  const std::uint32_t parent = own_slot(*arena);
  Child child([&] {
    const std::uint32_t me = own_slot(*arena);
    if (me == parent || entries_of(*arena, me) != 0 || wake(*arena, me, 1, 0)) return false;
    const WakePipe mine = new_pipe();
    set(*arena, 1, 0, mine);
    return wake(*arena, me, 1, 0) && is_readable(mine) && wake(*arena, parent, 1, 0);
  });
  CHECK(child.succeeded());
  CHECK(is_readable(pipe));
}

TEST_CASE("A hub is woken once for each request") {
  const auto arena = new_arena();
  const WakePipe hub = WakePipe::open(WakeKind::kTexts).value();
  const std::uint32_t me = own_slot(*arena);
  bool is_asked = true;
  const auto take = [&]() noexcept { return std::exchange(is_asked, false); };
  CHECK_FALSE(arena->wake_table().wake_hub(me, {}, take));  // the participant has no hub
  CHECK(is_asked);
  arena->wake_table().set_hub(own_identity(*arena), hub.address());
  for (int i = 0; i < 3; ++i) CHECK(arena->wake_table().wake_hub(me, {}, take));
  std::array<platform::WakeText, 3> texts;
  std::size_t received = 0;
  bool damaged = false;
  hub.receive(texts, received, damaged);
  CHECK((received == 1 && !damaged));
}

TEST_CASE("A damaged wake table only makes senders miss a wake-up") {
  const auto arena = new_arena();
  const std::uint32_t me = own_slot(*arena);
  const WakePipe pipe = new_pipe();
  set(*arena, 1, 0, pipe);
  memory::Participant& participant = arena->participants().slot(me);
  participant.wake_entries = ~0u;  // more than the table has
  CHECK_FALSE(wake(*arena, me, 2, 0));
  CHECK(wake(*arena, me, 1, 0));
  pipe.drain();
  for (const std::int32_t pid : {0, -1, 1, 0x7fffffff}) {
    participant.pid = pid;
    CHECK_FALSE(wake(*arena, me, 1, 0));
  }
  CHECK_FALSE(is_readable(pipe));
}

TEST_CASE("Senders find a pipe while its owner changes the table") {
  const auto arena = new_arena();
  const std::uint32_t me = own_slot(*arena);
  const WakePipe pipe = new_pipe(), other = new_pipe();
  set(*arena, 1, 0, pipe);
  std::atomic<bool> done{false};
  std::atomic<int> missed{0};
  {
    std::vector<std::jthread> senders;
    for (int i = 0; i < 2; ++i) {
      senders.emplace_back([&] {
        while (!done) missed += !wake(*arena, me, 1, 0);
      });
    }
    for (std::uint32_t round = 0; round < (kThreadSanitizer || under_valgrind() ? 200 : 5'000); ++round) {
      for (std::uint32_t i = 2; i < 6; ++i) set(*arena, i, round % 2, other);
      for (std::uint32_t i = 2; i < 6; ++i) clear(*arena, i, round % 2);
    }
    done = true;
  }
  CHECK(missed == 0);
  CHECK_FALSE(is_readable(other));
}

#if defined(SHMTREE_CRASH_POINTS)

namespace {

// Makes each kind of change to a table.
void change_table(Arena& arena) {
  const WakePipe pipe = new_pipe(), other = new_pipe();
  set(arena, 1, 0, pipe);
  set(arena, 2, 1, pipe);
  set(arena, 1, 0, other);
  clear(arena, 1, 0);
  set(arena, 3, 0, other);
  arena.wake_table().set_hub(own_identity(arena), other.address());
  clear(arena, 2, 1);
  clear(arena, 3, 0);
}

// Requires that no entry of a dead process's table wakes anything, and that the slot's next owner has an empty table.
void require_harmless(Arena& arena, std::uint32_t slot) {
  const WakePipe mine = new_pipe();
  set(arena, 1, 0, mine);
  for (const std::uint32_t channel : {1u, 2u, 3u}) {
    for (const unsigned end : {0u, 1u}) REQUIRE_FALSE(wake(arena, slot, channel, end));
  }
  bool is_asked = true;
  REQUIRE_FALSE(arena.wake_table().wake_hub(slot, {}, [&]() noexcept { return std::exchange(is_asked, false); }));
  REQUIRE(is_asked);
  REQUIRE_FALSE(is_readable(mine));
  recover(arena);
  Child next([&] {
    const std::uint32_t me = own_slot(arena);
    if (me != slot) return false;
    const WakePipe pipe = new_pipe();
    bool is_right = entries_of(arena, me) == 0 && !wake(arena, me, 2, 1);
    set(arena, 2, 1, pipe);
    is_right = is_right && wake(arena, me, 2, 1) && is_readable(pipe) && !wake(arena, me, 1, 0);
    return is_right;
  });
  REQUIRE(next.succeeded());
  REQUIRE(check_arena(arena) == "");
}

}  // namespace

TEST_CASE("A kill at any table change leaves a clean and silent slot") {
  std::int64_t changes = 1;
  for (bool killed = true; killed; ++changes) {
    INFO("killed at change " << changes);
    const auto arena = new_arena();
    const std::uint32_t slot = own_slot(*arena) + 1;
    killed = killed_at_change(changes, [&] { change_table(*arena); });
    require_harmless(*arena, slot);
  }
  CHECK(changes > 20);
}

// guarantee: wake-namespaces
TEST_CASE("A kill at any instruction of a change leaves a clean slot") {
  if (!can_step()) return;
  const int kills = kill_everywhere(400, [](std::int64_t change, int further) {
    INFO("killed " << further << " instructions after change " << change);
    const auto arena = new_arena();
    const std::uint32_t slot = own_slot(*arena) + 1;
    SteppedChild child(change, [&] { change_table(*arena); });
    const Stepped stepped = child.step(further);
    child.kill_now();
    require_harmless(*arena, slot);
    return stepped;
  });
  CHECK(kills > 20);
}

TEST_CASE("A process stopped in a table change blocks no sender") {
  std::int64_t changes = 1;
  for (bool stopped = true; stopped; ++changes) {
    const auto arena = new_arena();
    const std::uint32_t slot = own_slot(*arena) + 1;
    const Gate done;
    Child child([&] {
      crash_signal = SIGSTOP;
      changes_until_crash.store(changes);
      change_table(*arena);
      changes_until_crash.store(0);
      done.open();
      return true;
    });
    child.wait_until_stopped();
    INFO("stopped at change " << changes);
    for (const std::uint32_t channel : {1u, 2u, 3u}) {
      for (const unsigned end : {0u, 1u}) wake(*arena, slot, channel, end);
    }
    const WakePipe mine = new_pipe();
    set(*arena, 1, 0, mine);
    REQUIRE(wake(*arena, slot - 1, 1, 0));
    stopped = !done.is_open();
    child.signal(SIGCONT);
    REQUIRE(child.succeeded());
  }
  CHECK(changes > 20);
}

#endif
