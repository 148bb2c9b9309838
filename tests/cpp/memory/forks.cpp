// Forks: the pins that a child inherits, and forks at any moment of another thread or in the middle of a call.
#include <sys/syscall.h>

#include <thread>
#include <utility>
#include <vector>

#include "support/arenas.h"
#include "support/catch2.h"
#include "support/process.h"
#include "support/waits.h"

using namespace shmtree;
using namespace shmtree::platform;
using namespace shmtree::test;
using memory::Arena;

// guarantee: no-leak
TEST_CASE("Short-lived children reuse slots even in an idle arena") {
  const auto arena = new_arena(kMiB);
  for (int i = 0; i < 300; ++i) {
    Child child([] { return true; });
    REQUIRE(child.succeeded());
  }
  CHECK(arena->participants().used_slots() <= 64);
}

// guarantee: child-outlives-parent
TEST_CASE("A child forked during a join does not keep its parent alive") {
  std::vector<std::pair<UniqueFd, std::uint32_t>> joined;  // the file of each arena, and our slot in it
  std::atomic<bool> stop{false};
  std::thread joining([&] {
    while (!stop && joined.size() < 2000) {
      const auto arena = new_arena(kMiB);
      joined.emplace_back(reopen(arena->fd()).value(), memory::slot_of(arena->current_identity()));
    }
  });
  const Gate born, never;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 120; ++i) {
    children.push_back(std::make_unique<Child>([&] {
      born.open();
      return never.wait() == 0;
    }));
  }
  for (std::size_t i = 0; i < children.size(); ++i) born.wait();  // a child releases its parent's locks when it starts
  stop = true;
  joining.join();
  std::size_t locked = 0;
  for (const auto& [fd, slot] : joined) locked += byte_is_locked(fd.get(), slot) ? 1 : 0;
  CHECK(locked == 0);
}

// guarantee: fork-in-a-call
TEST_CASE("A child forked while its parent waits gets its own block") {
  const auto arena = new_arena(kMiB);
  OwnedBlock queued = new_block(*arena, 600'000);
  ForkingWaits waits;
  auto block = arena->allocate(600'000, BlockKind::kMessage, waits.until(patience().deadline));
  if (waits.in_child()) {
    const bool is_its_own = block && block->writer() == arena->current_identity();
    if (block) block->abandon();
    _exit(is_its_own ? 0 : 1);
  }
  REQUIRE(block.code() == Code::kInterrupted);
  queued.abandon();
  CHECK(waits.child_succeeded());
  CHECK(used_bytes(*arena) == 0);
}

// guarantee: views-outlive
TEST_CASE("An inherited lease outlives the lease of its parent") {
  auto arena = new_arena();
  Lease lease = filled_lease(*arena, 2 * kMiB, 5);
  Gate dropped;
  Child child([&] {
    dropped.wait();
    return is_filled(lease, 5);
  });
  lease.reset();
  overfill(*arena);
  dropped.open();
  CHECK(child.succeeded());
}

TEST_CASE("A lease inherited by a grandchild keeps its bytes") {
  auto arena = new_arena();
  Lease lease = filled_lease(*arena, kMiB, 6);
  Gate dropped, gone;
  Child child([&] {
    Child grandchild([&] {
      gone.open();
      dropped.wait();
      return is_filled(lease, 6);
    });
    gone.wait();
    lease.reset();
    return grandchild.succeeded();
  });
  lease.reset();
  // The grandchild is the last holder only after the child has dropped its own lease too.
  while (arena->inspector().holders().size() > 1) std::this_thread::yield();
  overfill(*arena);
  dropped.open();
  CHECK(child.succeeded());
}

TEST_CASE("A block released by a child stays pinned by its parent") {
  auto arena = new_arena();
  Lease lease = filled_lease(*arena, kMiB, 4);
  Child child([&] {
    lease.reset();
    return arena->holders().lease_count() == 0;
  });
  REQUIRE(child.succeeded());
  overfill(*arena);
  CHECK(is_filled(lease, 4));
}

TEST_CASE("The pins of a forked child are released after it exits") {
  auto arena = new_arena();
  Lease lease = new_lease(*arena, kMiB);
  Child child([] { return true; });
  REQUIRE(child.succeeded());
  lease.reset();
  CHECK(used_bytes(*arena) == kMiB);
  CHECK(arena->participants().check(0));
  REQUIRE(arena->reconcile(patience()).ok());
  CHECK(used_bytes(*arena) == 0);
}

TEST_CASE("A block being written at a fork stays with the parent") {
  auto arena = new_arena();
  OwnedBlock block = new_block(*arena);
  Child child([&] {
    block.abandon();
    return true;
  });
  REQUIRE(child.succeeded());
  CHECK(arena->blocks().is_current(block.ref()));
  CHECK(used_bytes(*arena) == 4096);
}

TEST_CASE("A forked child does not inherit a receive under way") {
  auto arena = new_arena();
  OwnedBlock block = new_block(*arena);
  const BlockRef ref = block.ref();
  arena->holders().begin(ref, arena->identity().value());
  block.publish();
  Gate forked, go;
  Child child([&] {
    forked.open();
    go.wait();
    return true;
  });
  forked.wait();
  arena->holders().drop(ref);
  CHECK(used_bytes(*arena) == 0);
  go.open();
  CHECK(child.succeeded());
}

TEST_CASE("A child without fork handlers releases nothing") {
  if (kThreadSanitizer) {
    WARN("ThreadSanitizer does not survive a clone that it does not see");
    return;
  }
  auto arena = new_arena();
  Lease lease = filled_lease(*arena, 5000, 8);
  OwnedBlock block = new_block(*arena);
  const long cloned = syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (cloned == 0) {
    lease.reset();
    block.abandon();
    syscall(SYS_exit_group, 0);
  }
  int status = -1;
  REQUIRE(waitpid(static_cast<pid_t>(cloned), &status, 0) == cloned);
  REQUIRE(status == 0);
  CHECK(arena->blocks().is_current(block.ref()));
  CHECK(used_bytes(*arena) == 8192 + 4096);
  CHECK(arena->inspector().holders().size() == 1);
  CHECK(is_filled(lease, 8));
}

TEST_CASE("A child without fork handlers attaches as itself") {
  if (kThreadSanitizer) {
    WARN("ThreadSanitizer does not survive a clone that it does not see");
    return;
  }
  auto arena = new_arena();
  Lease lease = new_lease(*arena, 5000);
  const memory::Identity parent = arena->identity().value();
  const long cloned = syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (cloned == 0) {
    auto me = arena->identity();
    bool good = me.ok() && *me != parent;
    Lease own = arena->hold_existing(lease.ref(), BlockKind::kArray, patience()).value();
    lease.reset();  // an inherited lease does not count here, so this does not release the pin of `own`
    good = good && arena->holders().lease_count() == 1;
    own.reset();
    syscall(SYS_exit_group, good && arena->holders().lease_count() == 0 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(static_cast<pid_t>(cloned), &status, 0) == cloned);
  CHECK(status == 0);
  CHECK(used_bytes(*arena) == 8192);
}
