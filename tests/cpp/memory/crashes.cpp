// A process killed between any two stores to shared memory, in every operation. Crash points count the stores, so each
// of them is tried.
#include "support/arenas.h"
#include "support/catch2.h"

#if defined(SHMTREE_CRASH_POINTS)

using namespace shmtree;
using namespace shmtree::test;

namespace {

// Kills `act` before its n-th store, for each n. The survivor must find `kept_bytes` in use and a consistent arena.
// `prepare(arena)` creates the initial state; its result is destroyed at the end.
template <class Prepare, class Act, class Keep>
void kill_at_every_change(Prepare prepare, Act act, Keep kept_bytes) {
  // valgrind is a hundred times slower, and looks for other errors
  const std::int64_t step = under_valgrind() ? 13 : 1;
  std::int64_t n = 1;
  for (bool killed = true; killed; n += step) {
    REQUIRE(n < 20'000);
    auto arena = new_arena();
    auto state = prepare(*arena);
    killed = killed_at_change(n, [&] { act(*arena, state); });
    INFO("killed before change " << n);
    const bool found = arena->participants().check(0);
    if (killed) REQUIRE(found);
    REQUIRE(arena->reconcile(patience()).ok());
    REQUIRE(check_arena(*arena) == "");
    REQUIRE(used_bytes(*arena) == kept_bytes(*arena, state));
    // The arena must still work.
    { const Lease lease = new_lease(*arena, 3 * kMiB); }
    REQUIRE(check_arena(*arena) == "");
  }
  REQUIRE(n > 3);
}

struct Nothing {};
Nothing nothing(Arena&) {
  return {};
}
std::uint64_t none(Arena&, Nothing) {
  return 0;
}

struct WindowState {
  Lease channel;
};
WindowState empty_window(Arena& arena) {
  return {Window::create(arena)};
}
WindowState window_of_two(Arena& arena) {
  WindowState state = empty_window(arena);
  for (int i = 0; i < 2; ++i) Window::of(arena, state.channel.ref()).put(arena, new_block(arena, 10'000));
  return state;
}
// Bytes of the channel: its own page, and three pages for each of its messages.
std::uint64_t window_bytes(Arena& arena, WindowState& state) {
  return 4096 + Window::of(arena, state.channel.ref()).queued() * 12288;
}

}  // namespace

TEST_CASE("A process killed in allocate or abandon leaks no block") {
  kill_at_every_change(
      nothing, [](Arena& arena, Nothing) { new_block(arena, 5000); }, none);
}

TEST_CASE("A process killed while a block grows leaks no page") {
  kill_at_every_change(
      [](Arena& arena) {
        new_lease(arena, 5000);
        return Nothing{};
      },
      [](Arena& arena, Nothing) {
        new_block(arena, 8000);
        new_block(arena, 2 * kMiB);
      },
      none);
}

TEST_CASE("A kill in an eviction leaves counts and pages right") {
  kill_at_every_change(
      [](Arena& arena) {
        const Lease a = new_lease(arena, 5 * kMiB), b = new_lease(arena, 5 * kMiB);
        return Nothing{};
      },
      [](Arena& arena, Nothing) { new_block(arena, 12 * kMiB); }, none);
}

TEST_CASE("A kill in trim leaves counts and pages right") {
  kill_at_every_change(
      [](Arena& arena) {
        new_lease(arena, 5 * kMiB);
        return Nothing{};
      },
      [](Arena& arena, Nothing) { arena.allocator().trim(); }, none);
}

TEST_CASE("A process killed while it pins or releases leaves no pin") {
  kill_at_every_change(
      nothing, [](Arena& arena, Nothing) { new_lease(arena, 5000); }, none);
}

TEST_CASE("A process killed in a release leaves the pins of others") {
  kill_at_every_change(
      [](Arena& arena) {
        Lease lease = new_lease(arena, 5000);
        std::memset(lease.data(), 7, 5000);
        return lease;
      },
      [](Arena& arena, Lease& lease) {
        const Lease again = arena.hold_existing(lease.ref(), BlockKind::kArray, patience()).value();
        lease.reset();
      },
      [](Arena&, Lease& lease) {
        REQUIRE(lease.data()[4999] == std::byte{7});
        return std::uint64_t{8192};
      });
}

TEST_CASE("A sender killed anywhere leaves a whole message or none") {
  kill_at_every_change(
      empty_window,
      [](Arena& arena, WindowState& state) {
        Window::of(arena, state.channel.ref()).put(arena, new_block(arena, 10'000));
      },
      window_bytes);
}

TEST_CASE("A receiver killed anywhere loses at most its message") {
  kill_at_every_change(
      window_of_two,
      [](Arena& arena, WindowState& state) { arena.holders().drop(Window::of(arena, state.channel.ref()).get(arena)); },
      window_bytes);
}

TEST_CASE("A receiver killed with views loses at most its message") {
  kill_at_every_change(
      window_of_two,
      [](Arena& arena, WindowState& state) {
        const Lease lease = adopt_hold(arena, Window::of(arena, state.channel.ref()).get(arena)).value();
      },
      window_bytes);
}

TEST_CASE("A process killed in refer loses neither blocks nor bytes") {
  kill_at_every_change(
      empty_window,
      [](Arena& arena, WindowState& state) {
        Window& window = Window::of(arena, state.channel.ref());
        {
          const Lease array = new_lease(arena, 4096);
          OwnedBlock message = new_block(arena, 10'000);
          const BlockRef list[] = {array.ref()};
          if (!arena.holders().refer(message, list, patience()).ok()) std::abort();
          window.put(arena, std::move(message));
        }
        arena.holders().drop(window.get(arena));
      },
      [](Arena& arena, WindowState& state) {
        // Each message in the window keeps a page of the array too.
        return 4096 + Window::of(arena, state.channel.ref()).queued() * (12288 + 4096);
      });
}

TEST_CASE("A channel is freed whole if its last holder is killed") {
  kill_at_every_change(
      nothing,
      [](Arena& arena, Nothing) {
        WindowState state = window_of_two(arena);
        state.channel.reset();
        arena.allocator().trim();
      },
      none);
}

TEST_CASE("A process killed while attaching leaves a reusable slot") {
  std::int64_t n = 1;
  for (bool killed = true; killed; ++n) {
    auto arena = new_arena();
    // Releases its own slot first, because a new process has none.
    killed = killed_at_change(n, [&] {
      auto slot = arena->reconciler().reserve_slot();
      if (slot) arena->participants().abandon(std::move(*slot));
    });
    INFO("killed before change " << n);
    arena->participants().check(0);
    REQUIRE(arena->reconcile(patience()).ok());
    REQUIRE(check_arena(*arena) == "");
    REQUIRE(arena->inspector().stats().participants == 1);
    REQUIRE(arena->reconciler().reserve_slot().ok());
  }
  REQUIRE(n > 3);
}

// guarantee: kill-anywhere
TEST_CASE("A reconcile killed anywhere is finished by the next one") {
  kill_at_every_change(
      [](Arena& arena) {
        WindowState state = window_of_two(arena);
        const Lease unused = new_lease(arena, 50'000);
        // A dead process that was writing one block, pinned a second one and a third through a list, and had one
        // queued.
        Gate ready;
        Child dead([&] {
          const OwnedBlock written = new_block(arena, 7000);
          const Lease held = new_lease(arena, 9000);
          OwnedBlock message = new_block(arena, 10'000);
          const BlockRef list[] = {held.ref()};
          if (!arena.holders().refer(message, list, patience()).ok()) return false;
          const Lease own = arena.hold_new(std::move(message)).value();
          Window::of(arena, state.channel.ref()).put(arena, new_block(arena, 10'000));
          ready.open();
          pause();
          return true;
        });
        ready.wait();
        dead.kill_and_wait();
        memory::request_recovery(arena.header());
        return state;
      },
      [](Arena& arena, WindowState&) {
        if (!arena.reconcile(patience()).ok()) std::abort();
      },
      window_bytes);
}

TEST_CASE("A reconcile killed during releases of others leaks no block") {
  for (std::int64_t n = 1;; n += 3) {
    auto arena = new_arena();
    Lease first = new_lease(*arena, 9000), second = new_lease(*arena, 9000);
    memory::request_recovery(arena->header());
    const bool killed = killed_at_change(n, [&] { static_cast<void>(arena->reconcile(patience()).ok()); });
    INFO("killed before change " << n);
    first.reset();  // derived state may be half rebuilt now
    arena->participants().check(0);
    REQUIRE(arena->reconcile(patience()).ok());
    second.reset();
    REQUIRE(check_arena(*arena) == "");
    REQUIRE(used_bytes(*arena) == 0);
    if (!killed) break;
  }
}

#endif
