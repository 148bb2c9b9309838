// The ring of a Broadcast, or of a Latest, in shared memory: docs/internals/broadcast-layout.md has the bytes, the
// order of stores, and why a kill does no harm.
//
// Primary state: `tail`, the entries of the ring, and the cursors. `kept`, `slowest`, `put_bytes` and `blocks_end` are
// derived.
#pragma once

#include "memory/publishers.h"
#include "platform/atomics.h"

namespace shmtree::broadcast {

using memory::Event;
using memory::Identity;

constexpr std::uint32_t kRingVersion = 7;
constexpr std::uint64_t kMaxEntries = 1 << 20;
constexpr std::uint32_t kMaxCursors = 256;

enum RingFlag : std::uint32_t {
  kPickles = 1,  // messages may contain pickles
  kWaits = 2,    // readers wait for new publishers: the stream has no end
};

// The properties of the two uses of a ring: a Broadcast and a Latest.
struct RingUse {
  memory::BlockKind kind;     // of its control block
  std::uint64_t magic;        // first word of the control block
  const char* name;           // in errors
  std::uint64_t cursors;      // number of cursors
  std::uint64_t entry_bytes;  // bytes of an entry and the small frame that follows it
};

// Treatment of a reader that is too slow.
enum class Policy : std::uint32_t {
  kBlock = 1,   // puts wait for it
  kSkip = 2,    // it misses messages that were overwritten
  kLatest = 3,  // it misses all messages but the newest
  kRaise = 4,   // like kSkip, and the reader's next get() returns kOverrun
};

// The fields of the word Cursor::owner.
struct Owner {
  Identity identity = memory::kNoIdentity;
  std::uint32_t use = 0;  // number of this use of the cursor
  // True once the reading process has claimed the cursor. Until then, the cursor belongs to all processes that hold its
  // Subscription, or to which the Subscription is in transit.
  bool claimed = false;
  Policy policy = Policy::kBlock;

  bool operator==(const Owner&) const noexcept = default;
};
constexpr std::uint32_t kUseMask = 0xffffff;
constexpr std::uint64_t pack(const Owner& owner) noexcept {
  return std::uint64_t{owner.identity} << 32 | std::uint64_t{owner.use & kUseMask} << 8 | (owner.claimed ? 16u : 0u) |
         static_cast<std::uint32_t>(owner.policy);
}
// Unpacks any word, even a damaged one.
constexpr Owner unpack_owner(std::uint64_t word) noexcept {
  return {.identity = static_cast<Identity>(word >> 32 & 0x3fffffff),
          .use = static_cast<std::uint32_t>(word >> 8) & kUseMask,
          .claimed = (word & 16) != 0,
          .policy = static_cast<Policy>(word & 15)};
}

struct alignas(64) Cursor {
  std::atomic<std::uint64_t> owner;         // 0: free
  std::atomic<std::uint64_t> position;      // ticket of the message that its reader reads next
  std::atomic<std::uint64_t> missed;        // number of messages that its reader has missed
  std::atomic<std::uint32_t> uses;          // number of uses of the cursor so far
  std::atomic<std::uint64_t> subscription;  // packed BlockRef of its Subscription; unused once it is claimed
  std::atomic<std::uint32_t> asks;          // not 0: its reader asks for a byte (doorbell.h)
  std::atomic<std::uint64_t> wake_address;  // platform::WakeAddress of the pipe that its owner opened
};
static_assert(sizeof(Cursor) == 64 && offsetof(Cursor, subscription) == 32 && offsetof(Cursor, asks) == 40 &&
              offsetof(Cursor, wake_address) == 48);

// The content of a block of kind kSubscription. Every process that has the subscription holds the block, until one
// process claims the subscription. The block refers to the control block, and is written before any other process knows
// its number.
struct Subscription {
  std::uint64_t ring;    // the control block, packed
  std::uint64_t owner;   // equal to the generation of the cursor
  std::uint32_t number;  // of the cursor
  std::uint32_t unused;
};
static_assert(sizeof(Subscription) == 24);

// An entry of the ring, which a small frame may follow. It changes only while `ticket` is 0.
struct Entry {
  std::atomic<std::uint64_t> ticket;  // ticket of the message, + 1; 0: no message
  std::atomic<std::uint64_t> block;   // packed BlockRef of the message; 0: the frame follows the entry
  std::atomic<std::uint64_t> bytes;   // of the frame
  std::atomic<std::uint64_t> before;  // bytes of all messages before this one
};
static_assert(sizeof(Entry) == 32);

inline constexpr RingUse kBroadcastUse{memory::BlockKind::kBroadcast, 0x7473616362746d73, "Broadcast", kMaxCursors,
                                       512};
// Layout of a Latest: readers find a version by its number, so there are no cursors, and each version has a block.
inline constexpr RingUse kLatestUse{memory::BlockKind::kLatest, 0x747365746c746d73, "Latest", 0, sizeof(Entry)};
constexpr std::uint64_t kInlineBytes = kBroadcastUse.entry_bytes - sizeof(Entry);

struct alignas(64) RingHeader {
  // Written once.
  std::uint64_t magic;        // "smtbcast", or "smtltest" for a Latest
  std::uint32_t version;      // kRingVersion
  std::uint32_t entries;      // number n of entries in the ring
  std::uint64_t capacity;     // messages that a lagging reader still finds
  std::uint64_t history;      // messages that are kept for later readers
  std::uint64_t max_bytes;    // maximum bytes of queued messages; 0: no limit
  std::uint32_t entry_bytes;  // 512, or 32 for a Latest
  std::uint32_t flags;        // RingFlag

  // Changed under the ring's lock.
  alignas(64) std::atomic<std::uint64_t> tail;    // ticket of the next message
  std::atomic<std::uint64_t> putting;             // not 0: a put, or a drop, is under way
  std::atomic<std::uint64_t> kept;                // derived: no message with a lower ticket has a block
  std::atomic<std::uint64_t> slowest;             // derived: no blocking cursor has a lower ticket
  std::atomic<std::uint64_t> put_bytes;           // derived: bytes of all messages put so far
  std::atomic<std::uint32_t> cursors_high;        // cursors with this number or a higher one were never used
  std::atomic<std::uint32_t> has_bells;           // 1: a reader has asked for wake-ups at some time
  std::atomic<std::uint64_t> blocks_end;          // derived: ticket after that of the last message in a block
  std::atomic<std::uint32_t> lock;                // a lock word
  std::atomic<std::uint32_t> has_space_requests;  // 1: a coroutine has awaited space at some time

  Event items;  // there is a message, or no process puts any more
  Event space;  // a cursor has moved, or was freed

  memory::PublisherWords publishers;         // processes that have put; before the first put, others too
  memory::ParticipantSet awaiting_messages;  // wait for a wake text at their hub; its sender clears the bit
  memory::ParticipantSet awaiting_space;     // like `awaiting_messages`, for processes that await space (doorbell.h)
};
static_assert(offsetof(RingHeader, tail) == 64 && offsetof(RingHeader, has_space_requests) == 124 &&
              offsetof(RingHeader, items) == 128 && offsetof(RingHeader, publishers) == 256 &&
              offsetof(RingHeader, awaiting_messages) == 8448 && offsetof(RingHeader, awaiting_space) == 8576 &&
              sizeof(RingHeader) == 8704);

// The cursors of a Broadcast.
inline Cursor* cursors_of(RingHeader& header) noexcept {
  return reinterpret_cast<Cursor*>(&header + 1);
}

struct BroadcastHeader : RingHeader {
  Cursor cursors[kMaxCursors];
};
static_assert(sizeof(BroadcastHeader) == sizeof(RingHeader) + kMaxCursors * sizeof(Cursor));

}  // namespace shmtree::broadcast
