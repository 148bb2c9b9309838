#include "observe/observer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "discovery/names.h"
#include "observe/openers.h"
#include "observe/publications.h"
#include "platform/clock.h"

namespace shmtree::observer {

using memory::ArenaHeader;
using memory::BlockKind;

namespace {

constexpr const char* kOutOfSight =
    "it cannot be opened: the processes attached to it are in another PID namespace or hidden from this one";

// Reads the uuid of an arena of any version. Returns false for other files, and for arenas under construction.
bool read_uuid(int fd, unsigned char uuid[16]) noexcept {
  std::uint64_t magic = 0;
  return platform::read_at(fd, offsetof(ArenaHeader, magic), &magic, sizeof magic) && magic == memory::kMagic &&
         platform::read_at(fd, offsetof(ArenaHeader, uuid), uuid, 16);
}

std::string hex_of(const unsigned char uuid[16]) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (int i = 0; i < 16; ++i) hex.append({kDigits[uuid[i] >> 4], kDigits[uuid[i] & 15]});
  return hex;
}

// Sums up the pinned memory of each participant, in the order of their first block.
class Holdings {
 public:
  explicit Holdings(const ObservedParticipants& participants) : participants_(participants) {}

  void count(BlockId id, const BlockEntry& block) {
    const auto kind = static_cast<BlockKind>(block.kind.load());
    if (kind != BlockKind::kMessage && kind != BlockKind::kArray && kind != BlockKind::kPublished) return;
    if (memory::state_of(block.word.load()) != memory::BlockState::kLive) return;
    const double seconds = seconds_of(now_ - std::clamp<std::int64_t>(block.since_ns.load(), 0, now_));
    block.holders.for_each([&](Slot slot) {
      if (!participants_.lives(slot)) return;
      ObservedHolder& holder = of(slot);
      holder.bytes += memory::committed_of(block, id.size_class());
      holder.blocks += 1;
      holder.seconds = std::max(holder.seconds, seconds);
    });
  }

  std::vector<ObservedHolder> found{};

 private:
  ObservedHolder& of(Slot slot) {
    const auto at = std::find(slots_.begin(), slots_.end(), slot);
    if (at != slots_.end()) return found[static_cast<std::size_t>(at - slots_.begin())];
    slots_.push_back(slot);
    return found.emplace_back(ObservedHolder{.pid = participants_.pid_of(slot)});
  }

  const ObservedParticipants& participants_;
  std::vector<Slot> slots_{};  // slot of each element of `found`
  const std::int64_t now_ = platform::coarse_monotonic_ns();
};

void fill_counts(const ArenaHeader& header, const ObservedParticipants& participants, ObservedArena& info) {
  info.committed_bytes = header.committed_bytes.load();
  info.used_bytes = header.used_bytes.load();
  info.held_bytes = header.held_bytes.load() & memory::kHeldMask;
  info.reconciles = header.reconciles.load();
  info.needs_recovery = memory::needs_recovery(header);
  info.locked_by = participants.owner_of_lock(header.arena_lock.load());
}

void add_object(const ArenaFile& file, BlockRef block, std::uint32_t kind, const ObservedParticipants& participants,
                const EndsInTransit& in_transit, ObservedArena& info) {
  switch (static_cast<BlockKind>(kind)) {
    case BlockKind::kChannel: info.channels.push_back(snapshot_channel(file, block, participants, in_transit)); break;
    case BlockKind::kLatest: info.latests.push_back(snapshot_latest(file, block, participants)); break;
    case BlockKind::kBroadcast: info.broadcasts.push_back(snapshot_broadcast(file, block, participants)); break;
    case BlockKind::kReplay: info.replays.push_back(snapshot_replay(file, block, participants)); break;
    default: break;
  }
}

std::unique_ptr<const ArenaHeader> read_header(const ArenaFile& file, bool& still) {
  const auto read = [&file](ArenaHeader& out) { return file.read(0, &out, sizeof out); };
  return ArenaFile::read_still<ArenaHeader>(read, still);
}

// Returns the participants, including processes that attached after the search.
Result<ObservedParticipants> participants_of(const ArenaFile& file, const ArenaHeader& header, OpenArena& open) {
  ObservedParticipants participants(file, header, open.processes);
  bool has_newcomers = false;
  for (const ObservedParticipant& one : participants.all()) {
    if (!one.alive || one.pid != 0) continue;
    const auto added = add_newcomer(open, one.namespace_pid);
    if (!added) return added.error();
    has_newcomers |= *added;
  }
  return has_newcomers ? ObservedParticipants(file, header, open.processes) : participants;
}

Status read_arena(const ArenaFile& file, OpenArena& open, ObservedArena& info) {
  const auto header = read_header(file, info.consistent);
  if (header == nullptr) return success();
  const auto participants = participants_of(file, *header, open);
  if (!participants) return participants.error();
  info.max_bytes = file.head().max_bytes;
  fill_counts(*header, *participants, info);
  Holdings holdings(*participants);
  const EndsInTransit in_transit = find_ends_in_transit(file, *header, *participants);
  file.for_each_block(*header, [&](BlockId id, const BlockEntry& block) {
    ++info.blocks;
    holdings.count(id, block);
    const BlockRef ref{id, memory::generation_of_block(block.word.load())};
    if (memory::state_of(block.word.load()) == memory::BlockState::kLive)
      add_object(file, ref, block.kind.load(), *participants, in_transit, info);
  });
  info.holders = std::move(holdings.found);
  info.participants = participants->all();
  return success();
}

// Adds a name to the object in its block. Adds a name that belongs to no such object, such as an array's, to the arena.
void add_name(ObservedArena& arena, const discovery::SeenName& seen) {
  const auto add_to = [&seen](auto& objects) {
    for (ObservedObject& object : objects) {
      if (object.block != seen.block) continue;
      object.names.push_back(seen.name);
      return true;
    }
    return false;
  };
  const bool is_things =
      add_to(arena.channels) || add_to(arena.latests) || add_to(arena.broadcasts) || add_to(arena.replays);
  if (!is_things) arena.names.push_back(seen.name);
}

using Names = std::vector<discovery::SeenName>;

auto find_arena(std::vector<ObservedArena>& arenas, const discovery::SeenName& seen) {
  return std::find_if(arenas.begin(), arenas.end(),
                      [uuid = hex_of(seen.uuid)](const ObservedArena& one) { return one.uuid == uuid; });
}

// Adds an entry for each arena that had a name before the search, still has it, and was not found: no visible process
// has it open.
Status add_out_of_sight(const Names& unknown, std::vector<ObservedArena>& arenas) {
  const auto now = discovery::list_records();
  if (!now) return now.error();
  for (const discovery::SeenName& seen : unknown) {
    const bool is_still_kept = std::any_of(now->begin(), now->end(), [&seen](const discovery::SeenName& one) {
      return one.name == seen.name && one.has_parts && std::equal(one.uuid, one.uuid + sizeof one.uuid, seen.uuid);
    });
    if (!is_still_kept) continue;
    auto arena = find_arena(arenas, seen);
    if (arena == arenas.end()) {
      arena = arenas.insert(arenas.end(), ObservedArena{.uuid = hex_of(seen.uuid), .refused = kOutOfSight});
    }
    add_name(*arena, seen);
  }
  return success();
}

Status add_names(const Names& names, std::vector<ObservedArena>& arenas) {
  Names unknown;
  for (const discovery::SeenName& seen : names) {
    if (const auto arena = find_arena(arenas, seen); arena != arenas.end()) {
      add_name(*arena, seen);
    } else if (seen.has_parts) {  // otherwise the name is a leftover of a killed process
      unknown.push_back(seen);
    }
  }
  return unknown.empty() ? success() : add_out_of_sight(unknown, arenas);
}

// Returns nullopt for a file that was closed meanwhile, and for a file that is not an arena.
Result<std::optional<ObservedArena>> look_at_open(const OpenArena& open) {
  auto fd = open_arena(open);
  if (fd) return snapshot_arena(std::move(*fd), open);
  if (platform::is_exhausted(fd.error())) return std::move(fd).error();
  if (fd.code() == Code::kNotFound) return std::optional<ObservedArena>();
  return std::optional(ObservedArena{.uuid = kNoUuid, .refused = fd.error().message, .openers = open.openers()});
}

}  // namespace

Result<std::optional<ObservedArena>> snapshot_arena(platform::UniqueFd fd, OpenArena open) {
  ObservedArena info;
  unsigned char uuid[16];
  if (!read_uuid(fd.get(), uuid)) return std::optional<ObservedArena>();
  info.uuid = hex_of(uuid);
  const auto file = ArenaFile::open(std::move(fd));
  if (!file) {
    info.refused = file.error().message;
  } else if (const Status looked = read_arena(*file, open, info); !looked) {
    return looked.error();
  }
  info.openers = open.openers();
  return std::optional(std::move(info));
}

Result<std::vector<ObservedArena>> snapshot_all() {
  std::vector<ObservedArena> arenas;
  const auto names = discovery::list_records();  // before the search, so that it finds every named arena
  if (!names) return names.error();
  const auto found = find_open_arenas();
  if (!found) return found.error();
  for (const OpenArena& open : *found) {
    auto info = look_at_open(open);
    if (!info) return std::move(info).error();
    if (*info) arenas.push_back(**std::move(info));
  }
  std::sort(arenas.begin(), arenas.end(), [](const ObservedArena& a, const ObservedArena& b) {
    if (a.refused.empty() != b.refused.empty()) return a.refused.empty();
    return a.uuid < b.uuid;
  });
  if (const Status named = add_names(*names, arenas); !named) return named.error();
  return arenas;
}

Result<std::vector<MessageInfo>> snapshot_queue(const unsigned char uuid[16], std::uint64_t block, std::size_t most,
                                                std::uint64_t max_bytes) {
  const auto found = find_open_arenas();
  if (!found) return found.error();
  for (OpenArena open : *found) {
    auto fd = open_arena(open);
    if (!fd && platform::is_exhausted(fd.error())) return std::move(fd).error();
    if (!fd) continue;
    const auto file = ArenaFile::open(std::move(*fd));
    if (!file || std::memcmp(file->head().uuid, uuid, sizeof file->head().uuid) != 0) continue;
    bool still = false;
    const auto header = read_header(*file, still);
    if (header == nullptr) break;
    const auto participants = participants_of(*file, *header, open);
    if (!participants) return participants.error();
    return snapshot_messages(*file, memory::unpack(block), *participants, most, max_bytes);
  }
  return Error{Code::kNotFound, "no process of this user is attached to that arena any more"};
}

}  // namespace shmtree::observer
