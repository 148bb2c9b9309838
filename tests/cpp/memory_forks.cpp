// Forks that come at any moment of another thread, or in the middle of a call.
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

TEST_CASE("Children that come and go use each other's slots, also in an arena that nobody does anything in") {
  const auto arena = new_arena(kMiB);
  for (int i = 0; i < 300; ++i) {
    Child child([] { return true; });
    REQUIRE(child.succeeded());
  }
  CHECK(arena->participants().used_slots() <= 64);
}

TEST_CASE("A child that is forked while its parent joins an arena does not keep the parent alive in it") {
  std::vector<std::pair<UniqueFd, std::uint32_t>> joined;  // each arena's file, and our slot in it
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
  for (std::size_t i = 0; i < children.size(); ++i) born.wait();  // a child lets go of its parent's locks as it starts
  stop = true;
  joining.join();
  std::size_t locked = 0;
  for (const auto& [fd, slot] : joined) locked += byte_is_locked(fd.get(), slot) ? 1 : 0;
  CHECK(locked == 0);
}

TEST_CASE("A child that is forked while memory is waited for has a block of its own") {
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
