// An observer of arenas in which a broken or hostile process writes. It may report wrong values, but keeps working.
#include <cstring>
#include <random>
#include <string>

#include "broadcast/layout.h"
#include "observe/publications.h"
#include "platform/machine.h"
#include "platform/other_process.h"
#include "replay/rows/layout.h"
#include "support/broadcasts.h"
#include "support/catch2.h"
#include "support/channels.h"
#include "support/flips.h"
#include "support/latests.h"
#include "support/replays.h"
#include "support/snapshots.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

constexpr std::uint64_t kInteresting[] = {0, 1, 7, 0x7fff'ffff, 0xffff'ffff, std::uint64_t{1} << 62, ~std::uint64_t{0}};

// Calls `look` with each word of [begin, begin + bytes) replaced, one at a time, and then with random values in all
// words.
template <class Look>
void with_damage(std::byte* begin, std::size_t bytes, Look look) {
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> whole(bytes / 8);
  std::memcpy(whole.data(), begin, bytes);
  for (std::size_t word = 0; word < whole.size(); ++word) {
    if (whole[word] == 0 && word % 16 != 0) continue;  // one of each group of unused words is enough
    const std::uint64_t value = kInteresting[random() % std::size(kInteresting)];
    std::memcpy(begin + 8 * word, &value, 8);
    look();
    std::memcpy(begin + 8 * word, &whole[word], 8);
  }
  for (int round = 0; round < 20; ++round) {
    for (std::size_t word = 0; word < whole.size(); ++word) {
      const std::uint64_t value = random() % 2 == 0 ? random() : kInteresting[random() % std::size(kInteresting)];
      std::memcpy(begin + 8 * word, &value, 8);
    }
    look();
  }
  std::memcpy(begin, whole.data(), bytes);
}

UniqueFd open_for_reading(const Arena& arena) {
  return open_from_process(process_id(), arena.fd(), Access::kRead).value();
}

// Observes one arena, and skips the search in /proc, which would find the same each time.
struct Looker {
  explicit Looker(const Arena& of) : file(observer::ArenaFile::open(open_for_reading(of)).value()) {}

  observer::ObservedParticipants participants() const {
    auto header = std::make_unique<memory::ArenaHeader>();
    if (!file.read(0, header.get(), sizeof *header)) std::abort();
    return {file, *header, {{process_id(), {process_id()}}}};
  }
  observer::ArenaFile file;
};

}  // namespace

TEST_CASE("A snapshot of a corrupt channel header stays in the file") {
  const auto channel = new_channel(new_arena(4 * kMiB), with_capacity(0));
  for (std::uint64_t number = 0; number < 20; ++number) put(*channel, number).value();
  const Looker looker(*channel->arena());
  const auto participants = looker.participants();
  with_damage(reinterpret_cast<std::byte*>(&header_of(*channel)), sizeof(ChannelHeader), [&] {
    const auto info = observer::snapshot_channel(looker.file, channel->block(), participants, {});
    const auto queue = observer::snapshot_messages(looker.file, channel->block(), participants, 30, kMiB);
    if (queue.size() > 30 || info.block == 0) std::abort();
  });
  CHECK(drain(*channel).size() == 20);
}

TEST_CASE("A forged message count does not lengthen a snapshot") {
  const auto channel = new_channel(new_arena(4 * kMiB), with_capacity(0));
  put(*channel, 7).value();
  const Looker looker(*channel->arena());
  auto& tail = header_of(*channel).tail;
  const std::uint64_t whole = tail.exchange(std::uint64_t{1} << 62);
  CHECK(observer::snapshot_messages(looker.file, channel->block(), looker.participants(), 30, kMiB).size() == 1);
  tail = whole;
}

TEST_CASE("A forged element count is limited to present pages") {
  const auto arena = new_arena();
  memory::OwnedBlock block = arena->allocate(20'480, memory::BlockKind::kReplay, {}).value();
  const memory::Lease lease = arena->hold_new(std::move(block)).value();
  std::memset(lease.data(), 1, 20'480);
  const Looker looker(*arena);
  CHECK(looker.file.present(lease.ref(), 0, 100, 8) == 100);
  CHECK(looker.file.present(lease.ref(), 0, std::uint64_t{1} << 60, 8) == 20'480 / 8);
  CHECK(looker.file.present(lease.ref(), 20'480 - 64, 100, 16) == 4);
  CHECK(looker.file.present(lease.ref(), 32'768, 1, 1) == 0);
  CHECK(looker.file.present(lease.ref(), ~std::uint64_t{0}, 1, 1) == 0);
}

TEST_CASE("A corrupt ring segment is read only inside the file") {
  const auto channel = new_channel(new_arena(4 * kMiB), with_capacity(0));
  for (std::uint64_t number = 0; number < 20; ++number) put(*channel, number, number % 2 == 0 ? 300 : 3).value();
  const Looker looker(*channel->arena());
  const auto participants = looker.participants();
  const std::uint64_t first = header_of(*channel).head_segment.load();
  with_damage(reinterpret_cast<std::byte*>(&segment_of(*channel, first)), 4096,
              [&] { observer::snapshot_messages(looker.file, channel->block(), participants, 30, kMiB); });
  CHECK(drain(*channel).size() == 20);
}

TEST_CASE("A cycle of segments ends the walk") {
  const auto channel = new_channel(new_arena(4 * kMiB), with_capacity(0));
  for (std::uint64_t number = 0; number < 20; ++number) put(*channel, number).value();
  const Looker looker(*channel->arena());
  const std::uint64_t first = header_of(*channel).head_segment.load();
  SegmentHeader& segment = segment_of(*channel, first);
  const std::uint64_t next = segment.next.exchange(first);
  CHECK(observer::snapshot_messages(looker.file, channel->block(), looker.participants(), 30, kMiB).size() <= 30);
  segment.next = next;
}

TEST_CASE("Corrupt Latest/Broadcast/replay headers are read in bounds") {
  const auto arena = new_arena();
  const auto latest = new_latest(2, arena);
  const auto ring = new_ring({.capacity = 4}, arena);
  const auto store = new_store({.capacity = 500}, arena);
  publish(*latest, 1).value();
  put(*ring, 1).value();
  const Looker looker(*arena);
  const auto participants = looker.participants();
  with_damage(reinterpret_cast<std::byte*>(&header_of(*latest)), sizeof(broadcast::RingHeader),
              [&] { observer::snapshot_latest(looker.file, latest->block(), participants); });
  auto* broadcast = arena->blocks().address(ring->block().id);
  with_damage(broadcast, sizeof(broadcast::BroadcastHeader),
              [&] { observer::snapshot_broadcast(looker.file, ring->block(), participants); });
  with_damage(reinterpret_cast<std::byte*>(&header_of(*store)), sizeof(ReplayHeader),
              [&] { observer::snapshot_replay(looker.file, store->block(), participants); });
}

TEST_CASE("Corrupt arena headers and tables are read in bounds") {
  const auto arena = new_arena(4 * kMiB);
  const auto channel = new_channel(arena);
  put(*channel, 1, 300).value();
  const Lease held = new_lease(*arena, 10'000);
  auto* header = reinterpret_cast<std::byte*>(&arena->header());
  const auto look = [&] {
    const auto info =
        observer::snapshot_arena(open_for_reading(*arena), {.processes = {{process_id(), {process_id()}}}}).value();
    if (!info || info->participants.size() > memory::kMaxParticipants) std::abort();
  };
  // The first words identify the file as an arena.
  with_damage(header + 32, sizeof(memory::ArenaHeader) - 32, look);
  with_damage(reinterpret_cast<std::byte*>(&arena->participants().slot(0)), 256, look);
  with_damage(reinterpret_cast<std::byte*>(arena->blocks().entry(held.ref().id)), sizeof(BlockEntry), look);
  with_damage(reinterpret_cast<std::byte*>(arena->blocks().entry(channel->block().id)), sizeof(BlockEntry), look);
  CHECK(look_at(*arena).channels.size() == 1);
}

TEST_CASE("Snapshots end while another process overwrites the channel") {
  const auto channel = new_channel(new_arena(4 * kMiB), with_capacity(0));
  for (std::uint64_t number = 0; number < 20; ++number) put(*channel, number).value();
  const Looker looker(*channel->arena());
  const auto participants = looker.participants();
  ChannelHeader& header = header_of(*channel);
  SegmentHeader& segment = segment_of(*channel, header.head_segment.load());
  Child child([&] {
    const Flips heads(header.head_segment, {header.head_segment.load(), 0, ~std::uint64_t{0}, std::uint64_t{9} << 59});
    const Flips tails(header.tail, {20, 0, ~std::uint64_t{0}});
    const Flips slots(as_atomic(segment.slots), {8, 0, 3, ~std::uint64_t{0}});
    for (int look = 0; look < 500; ++look) {
      observer::snapshot_channel(looker.file, channel->block(), participants, {});
      if (observer::snapshot_messages(looker.file, channel->block(), participants, 30, kMiB).size() > 30) return false;
    }
    return true;
  });
  CHECK(child.succeeded());
}
