// Slots of participants: a slot of a dead process is reused, and is clean then.
#include <sys/resource.h>

#include <algorithm>
#include <vector>

#include "support/crash_states.h"

using namespace shmtree;
using namespace shmtree::test;
using memory::Identity;

namespace {

bool raise_descriptor_limit(rlim_t count) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < count) return false;
  limit.rlim_cur = std::max(limit.rlim_cur, count);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

}  // namespace

// guarantee: dead-memory-is-freed
TEST_CASE("The slot of a killed process is swept and used again") {
  auto arena = new_arena();
  const Identity dead = dead_identity(*arena);
  CHECK_FALSE(arena->participants().is_alive(dead));
  recover(*arena);
  const memory::ReservedSlot slot = arena->reconciler().reserve_slot().value();
  CHECK(memory::slot_of(slot.identity) == memory::slot_of(dead));
  CHECK_FALSE(slot.identity == dead);
  CHECK(arena->participants().is_alive(slot.identity));
  CHECK_FALSE(arena->participants().is_alive(dead));
}

TEST_CASE("A detached process is marked and alive until it exits") {
  auto arena = new_arena();
  Gate gone, end;
  Child child([&] {
    arena->participants().detach();
    gone.open(arena->current_identity());
    end.wait();
    return true;
  });
  const auto identity = static_cast<Identity>(gone.wait());
  CHECK(arena->participants().is_status(memory::slot_of(identity), memory::ParticipantStatus::kDetached));
  // it stays alive until the process exits, because its pins end with it
  CHECK(arena->participants().is_alive(identity));
  end.open();
  CHECK(child.succeeded());
}

// guarantee: max-processes
TEST_CASE("reserve_slot fails when full until a participant dies") {
  Child child([] {
    if (!raise_descriptor_limit(1200)) return true;  // too few descriptors for this test
    auto arena = new_arena();
    std::vector<memory::ReservedSlot> slots;
    for (std::uint32_t i = 1; i < memory::kMaxParticipants; ++i) {
      auto slot = arena->reconciler().reserve_slot();
      if (!slot) return false;
      slots.push_back(std::move(*slot));
    }
    auto full = arena->reconciler().reserve_slot();
    if (full || full.code() != Code::kUnavailable) return false;
    if (full.error().message.find("1024") == std::string::npos) return false;
    // One participant dies with a pinned block. The next owner of its slot must have no pins.
    Lease lease = new_lease(*arena);
    const std::uint32_t slot = memory::slot_of(slots[500].identity);
    arena->blocks().entry(lease.ref().id)->holders.add(slot);
    slots[500].lock.reset();
    auto again = arena->reconciler().reserve_slot();
    if (!again || memory::slot_of(again->identity) != slot) return false;
    if (arena->inspector().holders().size() != 1) return false;
    lease.reset();
    return used_bytes(*arena) == 0 && check_arena(*arena) == "";
  });
  CHECK(child.succeeded());
}

TEST_CASE("A fork that reuses a dead slot protects inherited pins") {
  Child child([] {
    if (!raise_descriptor_limit(1200)) return true;  // too few descriptors for this test
    auto arena = new_arena();
    {
      std::vector<memory::ReservedSlot> slots;
      for (std::uint32_t i = 1; i < memory::kMaxParticipants; ++i)
        slots.push_back(arena->reconciler().reserve_slot().value());
    }
    Lease lease = new_lease(*arena);
    Child grandchild(
        [&] { return arena->current_identity() != memory::kNoIdentity && arena->holders().lease_count() == 1; });
    return grandchild.succeeded();
  });
  CHECK(child.succeeded());
}

TEST_CASE("A reused slot holds no pins before it is swept") {
  auto arena = new_arena();
  const Identity dead = dead_identity(*arena);
  const BlockRef ref = left_live(*arena);
  arena->blocks().entry(ref.id)->holders.words[memory::slot_of(dead) / 64] = holder_bit(dead);
  // The state of a slot that a new process has taken and not swept yet.
  memory::Participant& slot = arena->participants().slot(memory::slot_of(dead));
  slot.generation = memory::generation_of(dead) + 1;
  slot.status = static_cast<std::uint32_t>(memory::ParticipantStatus::kStale);
  const UniqueFd lock = reopen(arena->fd()).value();
  REQUIRE(try_lock_byte(lock.get(), memory::slot_of(dead)).value());
  recover(*arena);
  CHECK_FALSE(arena->blocks().is_current(ref));
  CHECK(slot.status == static_cast<std::uint32_t>(memory::ParticipantStatus::kAttached));
  CHECK(arena->participants().is_alive(memory::make_identity(memory::slot_of(dead), memory::generation_of(dead) + 1)));
}
