// Ends on their way to other processes: what their words mean, and the walk over those of a channel.
//
// What holds: as long as the process lives that gave an end away (pickled it), and for a minute after it was found
// gone, the end counts as taking part, until it is claimed. Each has a word of its own in shared memory, in which every
// change is one store: taken (0 -> the giver's), found gone (the giver's -> the second of that), claimed (-> 0).
//
// The words that the control block has no place for are in blocks chained to it. A block is put before the chain by one
// compare-and-swap and stays in it, so walks need no lock.
#pragma once

#include <algorithm>
#include <span>

#include "channel/control.h"
#include "platform/clock.h"

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

// Ends that were given away and not yet claimed.
struct OnTheirWay {
  std::uint64_t count;
  int pid;              // of the process that gave the oldest; 0 when it has ended
  std::int64_t age_ns;  // of the oldest
};

// Those of a channel. Thread safety: any thread, without locks.
class Grants {
 public:
  Grants(Arena& arena, ChannelHeader& shared) noexcept : arena_(arena), shared_(shared) {}

  // Calls visit(block, grants) for each block, that of the channel first with none, until it returns false.
  template <class Visit>
  Walked walk(Visit visit) const noexcept {
    if (!visit(BlockRef{}, std::span<Grant>(shared_.grants))) return Walked::kStopped;
    return walk_chain(arena_, platform::load_acquire(shared_.more_grants), sizeof(Grant),
                      [&](BlockRef block, std::byte* grants, std::uint64_t count) {
                        return visit(block, std::span<Grant>(reinterpret_cast<Grant*>(grants), count));
                      });
  }
  // Calls visit(grant) for each until it returns false.
  template <class Visit>
  Walked for_each(Visit visit) const noexcept {
    return walk([&](BlockRef, std::span<Grant> grants) {
      return std::all_of(grants.begin(), grants.end(), [&](Grant& grant) { return visit(grant); });
    });
  }

  // Takes a place for an end on its way, and says so. kOutOfSharedMemory when there is no memory for one.
  Result<std::uint64_t> give(End end, Identity me);
  // The place of that grant; null when it has none any more.
  Grant* find(std::uint64_t state) const noexcept;
  void claim(std::uint64_t state) noexcept;
  OnTheirWay on_their_way(End end) const noexcept;
  bool is_on_its_way(End end) const noexcept;
  // Whether a grant of `me` is open.
  bool has_one_of(Identity me) const noexcept;

 private:
  Grant* find_free() const noexcept;
  Status add();

  Arena& arena_;
  ChannelHeader& shared_;
};

// Arenas that this process has left but for ends that are on their way: who loads those finds the arena here.
struct KeptForGrants {
  static void add(Lease control) noexcept;
  // Lets go of those whose ends have arrived.
  static void sweep() noexcept;
};

}  // namespace shmtree::channel
