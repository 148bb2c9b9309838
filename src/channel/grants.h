// Ends on their way to other processes: what their words mean, and the walk over those of a channel.
//
// What holds: as long as the process lives that gave an end away (pickled it), and for a minute after it was found
// gone, the end counts as taking part, until it is claimed. Each has a word of its own in shared memory, in which every
// change is one store: taken (0 -> the giver's), found gone (the giver's -> the second of that), claimed (-> 0).
//
// The words that the control block has no place for are in blocks chained to it. A block is put before the chain by one
// compare-and-swap and stays in it, so walks need no lock.
#pragma once

#include <span>

#include "channel/channel.h"
#include "platform/atomics.h"

namespace shmtree::channel {

constexpr std::uint64_t kGrantLifeS = 60;  // after its giver was found gone

// A grant's state: bit 0 the end, bit 1 set when the giver is gone, 30 bits of the giver's identity or of the second in
// which it was found gone, 32 random ones (not 0) that stay the same.
constexpr std::uint64_t kGiverGone = 2;
constexpr std::uint64_t kSecondMask = 0x3fffffff;
constexpr std::uint64_t grant_state(std::uint32_t random, Identity giver, End end) noexcept {
  return std::uint64_t{random} << 32 | std::uint64_t{giver} << 2 | static_cast<std::uint64_t>(end);
}
constexpr std::uint64_t state_of_gone(std::uint64_t state, std::uint64_t second) noexcept {
  return (state & ~(kSecondMask << 2)) | (second & kSecondMask) << 2 | kGiverGone;
}
constexpr End end_of_grant(std::uint64_t state) noexcept {
  return static_cast<End>(state & 1);
}
constexpr bool giver_is_gone(std::uint64_t state) noexcept {
  return (state & kGiverGone) != 0;
}
constexpr Identity giver_of(std::uint64_t state) noexcept {
  return static_cast<Identity>(state >> 2 & kSecondMask);
}
constexpr bool is_same_grant(std::uint64_t a, std::uint64_t b) noexcept {
  return a >> 32 == b >> 32 && end_of_grant(a) == end_of_grant(b);
}
inline std::uint64_t second_of(std::int64_t ns) noexcept {
  return static_cast<std::uint64_t>(ns) / 1'000'000'000;
}
// Seconds since the giver was found gone. Unsigned: the word lies in memory that everyone can write.
constexpr std::uint64_t gone_for(std::uint64_t state, std::uint64_t now_s) noexcept {
  return (now_s - (state >> 2)) & kSecondMask;
}

// Tells which grants count, for one walk: a giver is asked for once in a row.
class Givers {
 public:
  explicit Givers(Arena& arena) noexcept : arena_(arena), now_s_(second_of(platform::monotonic_ns())) {}

  // Notes the giver's end where it is the first to find it.
  bool is_pending(Grant& grant) noexcept {
    std::uint64_t state = platform::load_acquire(grant.state);
    while (state != 0 && !giver_is_gone(state)) {
      if (lives(giver_of(state))) return true;
      const std::uint64_t gone = state_of_gone(state, now_s_);
      if (platform::compare_swap(grant.state, state, gone)) state = gone;
    }
    return state != 0 && gone_for(state, now_s_) < kGrantLifeS;
  }
  std::uint64_t now_s() const noexcept { return now_s_; }

 private:
  bool lives(Identity giver) noexcept {
    if (giver != known_) lives_ = arena_.participants().is_alive(giver);
    known_ = giver;
    return lives_;
  }
  Arena& arena_;
  std::uint64_t now_s_;
  Identity known_ = memory::kNobody;
  bool lives_ = false;
};

// Each block has as many as all before it together, so a longer chain than this is a damaged one.
constexpr int kMostGrantBlocks = 32;
constexpr std::uint64_t grants_bytes(std::uint64_t count) noexcept {
  return sizeof(GrantsHeader) + count * sizeof(Grant);
}

enum class Walked { kAll, kStopped, kUnmapped };  // kUnmapped: this process has no address space for some

// Calls visit(grants, block they are in) for each block, that of the channel first with none, until it returns false.
template <class Visit>
Walked walk_grants(Arena& arena, ChannelHeader& shared, Visit visit) noexcept {
  if (!visit(std::span<Grant>(shared.grants), BlockRef{})) return Walked::kStopped;
  std::uint64_t packed = platform::load_acquire(shared.more_grants);
  for (int links = 0; packed != 0 && links < kMostGrantBlocks; ++links) {
    const BlockRef ref = memory::unpack(packed);
    if (!arena.blocks().is_current(ref)) return arena.blocks().is_unmapped(ref) ? Walked::kUnmapped : Walked::kAll;
    auto* header = reinterpret_cast<GrantsHeader*>(arena.blocks().address(ref.id));
    if (header == nullptr) return Walked::kUnmapped;
    const std::uint64_t room = arena.blocks().room_of(ref.id);
    const std::uint64_t count = platform::load_once(header->count);
    if (room < sizeof(GrantsHeader) || count > (room - sizeof(GrantsHeader)) / sizeof(Grant)) return Walked::kAll;
    if (!visit(std::span<Grant>(reinterpret_cast<Grant*>(header + 1), count), ref)) return Walked::kStopped;
    packed = platform::load_acquire(header->next);
  }
  return Walked::kAll;
}

// Calls visit(grant) for each until it returns false.
template <class Visit>
Walked for_each_grant(Arena& arena, ChannelHeader& shared, Visit visit) noexcept {
  return walk_grants(arena, shared, [&](std::span<Grant> grants, BlockRef) {
    for (Grant& grant : grants) {
      if (!visit(grant)) return false;
    }
    return true;
  });
}

// Arenas that this process has left but for ends that are on their way: who loads those finds the arena here.
struct KeptForGrants {
  static void add(Lease control) noexcept;
  // Lets go of those whose ends have arrived.
  static void sweep() noexcept;
};

}  // namespace shmtree::channel
