// What an observer sees: plain values, of no use but to be looked at.
//
// Participants are named by their slot in ArenaInfo::participants, whose index it is. What is not `still` changed while
// it was looked at, each time: its numbers need not be of one moment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "channel/layout.h"

namespace shmtree::observe {

using Slot = std::uint32_t;

struct Opener {
  int pid = 0;
  int fd = -1;
};

// A thread that sleeps.
struct WaitInfo {
  memory::WaitFor what{};
  std::uint64_t block = 0;      // packed, of what it sleeps at; 0: the arena
  std::optional<Slot> owner{};  // of the lock that it waits for
  int thread = 0;               // its number, as its process has it
  std::int64_t waited_ns = 0;
};

struct ParticipantInfo {
  Slot slot = 0;
  int pid = 0;       // as this process sees it; 0: it is out of sight, as in a PID namespace that is not below ours
  int said_pid = 0;  // as it has written itself, in its own PID namespace
  bool alive = false;
  bool stopped = false;  // known of those in sight
  bool leaving = false;  // it is about to exit
  bool pinned = false;
  std::int64_t attached_ns = 0;   // how long ago it came
  std::vector<WaitInfo> waits{};  // of one that was killed: those that it died in
};

// What one participant holds of messages and arrays.
struct HolderInfo {
  Slot slot = 0;
  std::uint64_t bytes = 0;
  std::uint64_t blocks = 0;
  std::int64_t held_ns = 0;  // the one held for longest
};

struct EndInfo {
  std::vector<Slot> members;   // the living that have the end
  std::vector<Slot> counting;  // of these, those that take part: they have not only used the other end
  std::vector<Slot> unused;    // of these, those that have never used it
  std::uint64_t on_their_way = 0;
  std::optional<Slot> locked_by{};  // whoever puts, or receives, at this moment
  bool is_waited_at = false;        // somebody may sleep there: for room, or for messages
  std::int64_t slept_ns = 0;        // how long somebody did, since the channel was made
};

struct ThingInfo {
  std::uint64_t block = 0;  // packed
  std::vector<std::string> names{};
  std::string refused{};  // why it could not be read: then nothing follows
  bool still = true;
};

struct ChannelInfo : ThingInfo {
  std::uint64_t put = 0, received = 0, queued = 0, queued_bytes = 0, taken = 0, returned = 0, rejected = 0, dropped = 0,
                unfinished = 0;
  std::uint64_t capacity = 0, max_bytes = 0, max_unsettled = 0, max_attempts = 0;
  std::uint64_t limit = 0;  // messages that the ring takes at the moment; 0: no limit
  channel::Ending ending = channel::Ending::kRaise;
  channel::Shutdown shutdown = channel::Shutdown::kNot;
  bool allow_pickle = false, keep_open = false, drop_oldest = false;
  channel::PerEnd<EndInfo> ends{};
};

struct LatestInfo : ThingInfo {
  std::uint64_t version = 0, history = 0;
  std::vector<Slot> publishers{};
};

struct CursorInfo {
  std::optional<Slot> slot{};  // who reads; none: nobody has claimed it yet
  std::uint64_t position = 0, missed = 0;
  bool blocks = false;  // those who put wait for it
};
struct BroadcastInfo : ThingInfo {
  std::uint64_t put = 0, capacity = 0, history = 0, kept = 0;
  std::vector<Slot> publishers{};
  std::vector<CursorInfo> cursors{};
};

struct ReplayInfo : ThingInfo {
  std::uint64_t capacity = 0, rows = 0, record_bytes = 0, chunks = 0, chunks_opened = 0;
  std::optional<Slot> locked_by{};
};

struct ArenaInfo {
  std::vector<Opener> openers{};
  std::vector<std::string> names{};
  std::string refused{};  // why it could not be read: then nothing but who has it is known
  unsigned char uuid[16]{};
  bool still = true;            // its own counts
  bool needs_recovery = false;  // somebody was found dead: counts and free lists are not right until it is repaired
  std::uint64_t max_bytes = 0, committed_bytes = 0, used_bytes = 0, held_bytes = 0, blocks = 0, reconciles = 0;
  std::optional<Slot> locked_by{};
  std::vector<ParticipantInfo> participants{};  // those that are, or that a kill has left; by slot
  std::vector<HolderInfo> holders{};
  std::vector<ChannelInfo> channels{};
  std::vector<LatestInfo> latests{};
  std::vector<BroadcastInfo> broadcasts{};
  std::vector<ReplayInfo> replays{};
};

}  // namespace shmtree::observe
