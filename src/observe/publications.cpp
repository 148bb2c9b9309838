#include "observe/publications.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <utility>

#include "broadcast/layout.h"
#include "platform/other_version.h"
#include "replay/rows/layout.h"

namespace shmtree::observer {

namespace {

// Returns a copy of the object's control block. Returns nullptr if it is not such an object of this version;
// info.refused then has the reason.
template <class Header>
std::unique_ptr<const Header> header_at(const ArenaFile& file, BlockRef block, std::uint64_t magic,
                                        std::uint32_t version, ObservedObject& info) {
  info.block = memory::pack(block);
  auto header = file.read_still<Header>(block, info.consistent);
  if (header == nullptr) {
    info.refused = "it was freed while it was being read";
  } else if (header->magic != magic) {
    info.refused = "it has no header of this kind";
  } else if (header->version != version) {
    info.refused = platform::other_version("it has layout version", header->version, version).message;
  }
  return info.refused.empty() ? std::move(header) : nullptr;
}

std::vector<int> publishing(const memory::PublisherWords& words, const ObservedParticipants& participants) {
  std::vector<int> found;
  for (Slot slot = 0; slot < memory::kMaxParticipants; ++slot) {
    const std::uint64_t word = words.by_slot[slot].load();
    const memory::Identity identity = memory::identity_of(word);
    const bool publishes = word != 0 && memory::role_of(word) == memory::PublisherRole::kPublishes &&
                           memory::failure_of(memory::death_of(word)) == memory::Failure::kNone;
    if (publishes && memory::slot_of(identity) == slot && participants.is_alive(identity))
      found.push_back(participants.pid_of(slot));
  }
  return found;
}

std::uint64_t kept_of(const broadcast::BroadcastHeader& header, std::uint64_t tail) {
  const std::uint64_t window = std::min(tail, std::max(header.capacity, header.history));
  return tail - std::min(tail, std::max(header.kept.load(), tail - window));
}

// Counts the rows that may be sampled.
class RowSum {
 public:
  RowSum(const ArenaFile& file, BlockRef block, const replay::ReplayHeader& header)
      : file_(file), block_(block), header_(header), head_(header.head.load()), tail_(header.tail.load()) {}

  std::uint64_t count() const {
    std::uint64_t rows = 0;
    const std::uint64_t there = file_.present(block_, header_.progress_offset, header_.chunks, sizeof(std::uint64_t));
    for (std::uint64_t first = 0; first < there; first += kAtOnce) {
      const std::uint64_t chunks = std::min(kAtOnce, there - first);
      std::uint64_t progress[kAtOnce];
      replay::ChunkInfo infos[kAtOnce]{};
      if (!read(header_.progress_offset, first, progress, chunks)) break;
      if (header_.finals != 0 && !read(header_.info_offset, first, infos, chunks)) break;
      for (std::uint64_t i = 0; i < chunks; ++i) {
        rows += rows_of(replay::unpack_progress(progress[i]), infos[i].finals.load());
      }
    }
    return rows;
  }

 private:
  static constexpr std::uint64_t kAtOnce = 512;

  // Copies `count` elements from element `first` on, of an array that begins at `offset` in the block.
  template <class T>
  bool read(std::uint64_t offset, std::uint64_t first, T* out, std::uint64_t count) const {
    constexpr std::uint64_t kMax = std::uint64_t{1} << memory::kMaxClass;
    return offset < kMax && first < kMax / sizeof(T) &&
           file_.read_block(block_, offset + first * sizeof(T), out, count * sizeof(T));
  }
  std::uint64_t rows_of(const replay::Progress& chunk, std::uint64_t finals) const {
    if (chunk.ticket < head_ || chunk.ticket >= tail_) return 0;
    const std::uint64_t ready = std::min<std::uint64_t>(chunk.ready, header_.rows_per_chunk);
    return ready - static_cast<std::uint64_t>(std::popcount(finals & replay::bits_below(ready)));
  }

  const ArenaFile& file_;
  BlockRef block_;
  const replay::ReplayHeader& header_;
  std::uint64_t head_, tail_;
};

}  // namespace

ObservedLatest snapshot_latest(const ArenaFile& file, BlockRef block, const ObservedParticipants& participants) {
  ObservedLatest info;
  const auto header =
      header_at<broadcast::RingHeader>(file, block, broadcast::kLatestUse.magic, broadcast::kRingVersion, info);
  if (header == nullptr) return info;
  info.version = header->tail.load();
  info.history = std::max<std::uint64_t>(header->history, 1) - 1;
  info.publishers = publishing(header->publishers, participants);
  return info;
}

ObservedBroadcast snapshot_broadcast(const ArenaFile& file, BlockRef block, const ObservedParticipants& participants) {
  ObservedBroadcast info;
  const auto header =
      header_at<broadcast::BroadcastHeader>(file, block, broadcast::kBroadcastUse.magic, broadcast::kRingVersion, info);
  if (header == nullptr) return info;
  info.put = header->tail.load();
  info.capacity = header->capacity;
  info.history = header->history;
  info.kept = kept_of(*header, info.put);
  info.publishers = publishing(header->publishers, participants);
  const std::uint32_t used = std::min(header->cursors_high.load(), broadcast::kMaxCursors);
  for (std::uint32_t i = 0; i < used; ++i) {
    const broadcast::Cursor& cursor = header->cursors[i];
    const broadcast::Owner owner = broadcast::unpack_owner(cursor.owner.load());
    if (cursor.owner.load() == 0 || (owner.claimed && !participants.is_alive(owner.identity))) continue;
    ObservedSubscriber& reader = info.subscribers.emplace_back();
    if (owner.claimed) reader.pid = participants.pid_of(memory::slot_of(owner.identity));
    reader.behind = info.put - std::min(info.put, cursor.position.load());
    reader.missed = cursor.missed.load();
    reader.blocks = owner.policy == broadcast::Policy::kBlock;
  }
  return info;
}

ObservedReplay snapshot_replay(const ArenaFile& file, BlockRef block, const ObservedParticipants& participants) {
  ObservedReplay info;
  const auto header = header_at<replay::ReplayHeader>(file, block, replay::kReplayMagic, replay::kReplayVersion, info);
  if (header == nullptr) return info;
  info.capacity = header->capacity;
  info.record_bytes = header->record_bytes;
  info.chunks_opened = std::max<std::uint64_t>(header->tail.load(), 1) - 1;
  info.chunks = header->tail.load() - std::min(header->tail.load(), header->head.load());
  info.rows = RowSum(file, block, *header).count();
  info.locked_by = participants.owner_of_lock(header->lock.load());
  return info;
}

}  // namespace shmtree::observer
