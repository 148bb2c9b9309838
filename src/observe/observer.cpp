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
    "it is out of sight: the processes that have it are in another PID namespace, or hide from this one";

// The uuid of an arena of whatever version; false for other files, and for arenas that are being made.
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

// What holders hold, in the order in which they were met.
class Holdings {
 public:
  explicit Holdings(const People& people) : people_(people) {}

  void count(BlockId id, const BlockEntry& block) {
    const auto kind = static_cast<BlockKind>(block.kind.load());
    if (kind != BlockKind::kMessage && kind != BlockKind::kArray && kind != BlockKind::kPublished) return;
    if (memory::state_of(block.word.load()) != memory::BlockState::kLive) return;
    const double seconds = seconds_of(now_ - std::clamp<std::int64_t>(block.since_ns.load(), 0, now_));
    block.holders.for_each([&](Slot slot) {
      if (!people_.lives(slot)) return;
      ObservedHolder& holder = of(slot);
      holder.bytes += memory::committed_of(block, id.size_class());
      holder.blocks += 1;
      holder.seconds = std::max(holder.seconds, seconds);
    });
  }

  std::vector<ObservedHolder> found{};

 private:
  ObservedHolder& of(Slot slot) {
    const auto known = std::find(slots_.begin(), slots_.end(), slot);
    if (known != slots_.end()) return found[static_cast<std::size_t>(known - slots_.begin())];
    slots_.push_back(slot);
    return found.emplace_back(ObservedHolder{.pid = people_.pid_of(slot)});
  }

  const People& people_;
  std::vector<Slot> slots_{};  // of each that was found
  const std::int64_t now_ = platform::coarse_monotonic_ns();
};

void fill_counts(const ArenaHeader& header, const People& people, ObservedArena& info) {
  info.committed_bytes = header.committed_bytes.load();
  info.used_bytes = header.used_bytes.load();
  info.held_bytes = header.held_bytes.load() & memory::kHeldMask;
  info.reconciles = header.reconciles.load();
  info.needs_recovery = memory::needs_recovery(header);
  info.locked_by = people.owner_of_lock(header.arena_lock.load());
}

void add_thing(const ArenaFile& file, BlockRef block, std::uint32_t kind, const People& people, ObservedArena& info) {
  switch (static_cast<BlockKind>(kind)) {
    case BlockKind::kChannel: info.channels.push_back(look_at_channel(file, block, people)); break;
    case BlockKind::kLatest: info.latests.push_back(look_at_latest(file, block, people)); break;
    case BlockKind::kBroadcast: info.broadcasts.push_back(look_at_broadcast(file, block, people)); break;
    case BlockKind::kReplay: info.replays.push_back(look_at_replay(file, block, people)); break;
    default: break;
  }
}

std::unique_ptr<const ArenaHeader> read_header(const ArenaFile& file, bool& still) {
  const auto read = [&file](ArenaHeader& out) { return file.read(0, &out, sizeof out); };
  return ArenaFile::read_still<ArenaHeader>(read, still);
}

void look_into(const ArenaFile& file, const std::vector<Process>& processes, ObservedArena& info) {
  const auto header = read_header(file, info.consistent);
  if (header == nullptr) return;
  const People people(file, *header, processes);
  info.max_bytes = file.head().max_bytes;
  fill_counts(*header, people, info);
  Holdings holdings(people);
  file.for_each_block(*header, [&](BlockId id, const BlockEntry& block) {
    ++info.blocks;
    holdings.count(id, block);
    const BlockRef ref{id, memory::generation_of_block(block.word.load())};
    if (memory::state_of(block.word.load()) == memory::BlockState::kLive)
      add_thing(file, ref, block.kind.load(), people, info);
  });
  info.holders = std::move(holdings.found);
  info.participants = people.all();
}

// To the thing that lies in that block, or else, as an array's, to the arena.
void add_name(ObservedArena& arena, const discovery::SeenName& seen) {
  const auto add_to = [&seen](auto& things) {
    for (ObservedThing& thing : things) {
      if (thing.block != seen.block) continue;
      thing.names.push_back(seen.name);
      return true;
    }
    return false;
  };
  const bool is_things =
      add_to(arena.channels) || add_to(arena.latests) || add_to(arena.broadcasts) || add_to(arena.replays);
  if (!is_things) arena.names.push_back(seen.name);
}

void add_names(const std::vector<discovery::SeenName>& names, std::vector<ObservedArena>& arenas) {
  for (const discovery::SeenName& seen : names) {
    const auto is_it = [uuid = hex_of(seen.uuid)](const ObservedArena& one) { return one.uuid == uuid; };
    auto known = std::find_if(arenas.begin(), arenas.end(), is_it);
    if (known == arenas.end() && !seen.has_parts) continue;  // left over by a kill
    if (known == arenas.end()) {
      known = arenas.insert(arenas.end(), ObservedArena{.uuid = hex_of(seen.uuid), .refused = kOutOfSight});
    }
    add_name(*known, seen);
  }
}

// Nothing for what has gone meanwhile, and for what is no arena.
Result<std::optional<ObservedArena>> look_at_open(const OpenArena& open) {
  std::optional<ObservedArena> info;
  auto fd = open_arena(open);
  if (fd) {
    info = look_at_arena(std::move(*fd), open.processes);
  } else if (platform::is_exhausted(fd.error())) {
    return fd.error();
  } else if (fd.code() != Code::kNotFound) {
    info = ObservedArena{.uuid = kNoUuid, .refused = fd.error().message};
  }
  if (info) info->openers = open.openers();
  return info;
}

}  // namespace

std::optional<ObservedArena> look_at_arena(platform::UniqueFd fd, const std::vector<Process>& processes) {
  ObservedArena info;
  unsigned char uuid[16];
  if (!read_uuid(fd.get(), uuid)) return std::nullopt;
  info.uuid = hex_of(uuid);
  const auto file = ArenaFile::open(std::move(fd));
  if (!file) {
    info.refused = file.error().message;
  } else {
    look_into(*file, processes, info);
  }
  return info;
}

Result<std::vector<ObservedArena>> look_at_all() {
  std::vector<ObservedArena> arenas;
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
  const auto names = discovery::look_at_names();
  if (!names) return names.error();
  add_names(*names, arenas);
  return arenas;
}

Result<std::vector<MessageInfo>> look_at_queue(const unsigned char uuid[16], std::uint64_t block, std::size_t most,
                                               std::uint64_t most_bytes) {
  const auto found = find_open_arenas();
  if (!found) return found.error();
  for (const OpenArena& open : *found) {
    auto fd = open_arena(open);
    if (!fd && platform::is_exhausted(fd.error())) return std::move(fd).error();
    if (!fd) continue;
    const auto file = ArenaFile::open(std::move(*fd));
    if (!file || std::memcmp(file->head().uuid, uuid, sizeof file->head().uuid) != 0) continue;
    bool still = false;
    const auto header = read_header(*file, still);
    if (header == nullptr) break;
    return look_at_messages(*file, memory::unpack(block), People(*file, *header, open.processes), most, most_bytes);
  }
  return Error{Code::kNotFound, "no process of this user has that arena any more"};
}

}  // namespace shmtree::observer
