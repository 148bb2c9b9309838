// An observer's view of arenas and of their participants. Observing changes nothing.
#include <unistd.h>

#include <string>

#include "platform/machine.h"
#include "support/catch2.h"
#include "support/snapshots.h"

using namespace shmtree;
using namespace shmtree::test;

TEST_CASE("An unnamed arena is found through its fd holders") {
  const auto arena = new_arena(8 * kMiB);
  const Lease held = new_lease(*arena, 100'000);
  const ObservedArena seen = look_at(*arena);
  CHECK(seen.refused == "");
  CHECK(opens(seen, process_id()));
  CHECK(seen.max_bytes == 8 * kMiB);
  CHECK(seen.used_bytes == arena->inspector().stats().used_bytes);
  CHECK(seen.committed_bytes == arena->inspector().stats().committed_bytes);
  CHECK(seen.held_bytes >= 100'000);
  CHECK(seen.blocks == 1);
  CHECK(seen.consistent);
  CHECK_FALSE(seen.needs_recovery);
  CHECK_FALSE(seen.locked_by.has_value());
}

TEST_CASE("Participants are shown as alive or stopped or dead") {
  const auto arena = new_arena();
  Participant child(arena);
  CHECK(participant_of(look_at(*arena), process_id()).alive);
  CHECK(participant_of(look_at(*arena), child.pid()).alive);
  CHECK_FALSE(participant_of(look_at(*arena), child.pid()).stopped);
  CHECK(opens(look_at(*arena), process_id()));
  CHECK(opens(look_at(*arena), child.pid()));

  child.process().signal(SIGSTOP);
  child.process().wait_until_stopped();
  const ObservedParticipant stopped = participant_of(look_at(*arena), child.pid());
  CHECK(stopped.alive);
  CHECK(stopped.stopped);
  CHECK(stopped.namespace_pid == child.pid());

  child.process().kill_and_wait();
  const ObservedArena after = look_at(*arena);
  CHECK(opens(after, process_id()));
  CHECK_FALSE(opens(after, child.pid()));
  REQUIRE(after.participants.size() == 2);
  for (const ObservedParticipant& one : after.participants) CHECK(one.alive == (one.namespace_pid == process_id()));
}

TEST_CASE("Held bytes and times are summed per process") {
  const auto arena = new_arena();
  const Lease one = new_lease(*arena, 100'000), other = new_lease(*arena, 50'000);
  const ObservedArena seen = look_at(*arena);
  REQUIRE(seen.holders.size() == 1);
  CHECK(seen.holders[0].pid == process_id());
  CHECK(seen.holders[0].bytes >= 150'000);
  CHECK(seen.holders[0].bytes < 200'000);
  CHECK(seen.holders[0].blocks == 2);
  CHECK(seen.holders[0].seconds >= 0);
}

TEST_CASE("A stopped owner of the arena lock is reported") {
  const auto arena = new_arena();
  const StoppedOwner owner(arena, arena->header().arena_lock);
  const ObservedArena seen = look_at(*arena);
  CHECK(seen.locked_by == owner.pid());
}

TEST_CASE("A snapshot changes no byte and allocates no page") {
  const auto arena = new_arena(4 * kMiB);
  const Lease held = new_lease(*arena, 10'000);
  // A table that claims to be longer than it is would cost pages if the observer mapped it.
  arena->header().classes[1].high = 100'000;
  const auto before = bytes_of(*arena);
  const std::uint64_t pages = file_pages_bytes(*arena);
  for (int look = 0; look < 3; ++look) look_at(*arena);
  CHECK(bytes_of(*arena) == before);
  CHECK(file_pages_bytes(*arena) == pages);
}

TEST_CASE("An arena of another version is refused with both versions") {
  const auto arena = new_arena();
  arena->header().version = 77;
  const ObservedArena seen = look_at(*arena);
  arena->header().version = memory::kVersion;
  CHECK(seen.refused.find("layout version 77") != std::string::npos);
  CHECK(seen.refused.find("version " + std::to_string(memory::kVersion)) != std::string::npos);
  CHECK(opens(seen, process_id()));
  CHECK(seen.participants.empty());
}

TEST_CASE("A budget that does not fit the file is refused") {
  const auto arena = new_arena();
  const std::uint64_t budget = arena->header().max_bytes;
  for (const std::uint64_t wrong : {std::uint64_t{0}, budget * 2, ~std::uint64_t{0}}) {
    arena->header().max_bytes = wrong;
    CHECK_FALSE(look_at(*arena).refused.empty());
  }
}

TEST_CASE("Files that only have the name of an arena are ignored") {
  const UniqueFd empty = create_memory_file(memory::kFileName, 0).value();
  const UniqueFd zeros = create_memory_file(memory::kFileName, 1 << 20).value();
  const UniqueFd text = create_memory_file(memory::kFileName, 4096).value();
  REQUIRE(pwrite(text.get(), "no arena", 8, 0) == 8);
  const auto arena = new_arena();
  std::size_t ours = 0;
  for (const ObservedArena& one : observe()) {
    for (const ObservedOpener& opener : one.openers) ours += opener.pid == process_id();
  }
  CHECK(ours == 1);
}

TEST_CASE("A file with only the beginning of an arena is refused") {
  const UniqueFd file = create_memory_file(memory::kFileName, 1 << 20).value();
  unsigned char uuid[16];
  random_bytes(uuid, sizeof uuid);
  REQUIRE(pwrite(file.get(), &memory::kMagic, 8, 0) == 8);
  REQUIRE(pwrite(file.get(), uuid, sizeof uuid, offsetof(memory::ArenaHeader, uuid)) == 16);
  CHECK_FALSE(look_at(uuid).refused.empty());
}
