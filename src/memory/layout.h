// The arena file, byte for byte. Everything that processes share, except what the channel layer keeps inside its
// blocks.
//
//   offset 0            ArenaHeader                                   16 KiB
//   16 KiB              Participant[1024]                             1 MiB, a page is touched when a slot is
//   2 MiB               WakeEntry[1024][4096]                         64 MiB, a page is touched when a slot needs it
//   then, per class k   BlockEntry[count(k)]                          the block table, committed as it grows
//   then, per class k   count(k) blocks of 2^k bytes                  the data, committed as messages need it
//
// Words that different processes write at the same time lie on cache lines of their own, against false sharing.
// File offsets are free (the file is sparse), so every class owns at least twice the budget of them and can never run
// out before the budget does. Bytes are little-endian. Who may write what:
//   truth       BlockEntry::{word, committed, size, list of references and its length, kind, holders},
//               Participant::{generation, status, pinned}, the transfers; channels add their ring windows and delivery
//               records
//   derived     everything else; reconcile() rebuilds it from the truth
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "platform/atomics.h"

namespace shmtree::memory {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kMagic = 0x616e657261746d73;  // "smtarena"
constexpr std::uint32_t kVersion = 8;
constexpr const char* kFileName = "shmtree";  // as /proc shows it
constexpr std::uint32_t kMaxParticipants = 1024;
constexpr std::uint32_t kParticipantWords = kMaxParticipants / 64;
constexpr unsigned kMinClass = 12;  // 4 KiB: one page
constexpr unsigned kMaxClass = 42;  // 4 TiB
constexpr unsigned kClasses = kMaxClass - kMinClass + 1;
constexpr std::uint64_t kPageBytes = 4096;  // the least that a system may have; see Geometry
constexpr std::uint64_t kMostPageBytes = 65536;
constexpr std::uint64_t kTableStep = 1024;                    // table entries whose pages are committed at a time
constexpr std::uint64_t kMaxBudget = std::uint64_t{2} << 40;  // keeps a block index within 30 bits

// A participant: 10 bits of slot and 20 of that slot's generation. Never 0 for one that is attached.
using Identity = std::uint32_t;
constexpr Identity kNobody = 0;
constexpr Identity make_identity(std::uint32_t slot, std::uint32_t generation) noexcept {
  return (generation & 0xfffffu) << 10 | slot;
}
constexpr std::uint32_t slot_of(Identity identity) noexcept {
  return identity & 0x3ffu;
}
constexpr std::uint32_t generation_of(Identity identity) noexcept {
  return identity >> 10 & 0xfffffu;
}

// A set of participants, a bit each. Changes and looks are ordered among those of all processes (sequentially
// consistent): in a Dekker handshake, in which two sides each store one word and then look at the other's, one sees the
// other.
struct alignas(64) ParticipantSet {
  std::atomic<std::uint64_t> words[kParticipantWords];

  static constexpr std::uint64_t bit_of(std::uint32_t slot) noexcept { return std::uint64_t{1} << (slot % 64); }
  // Whether it changed anything.
  bool add(std::uint32_t slot) noexcept {
    return (platform::set_bits(words[slot / 64], bit_of(slot)) & bit_of(slot)) == 0;
  }
  bool take(std::uint32_t slot) noexcept {
    return (platform::clear_bits(words[slot / 64], bit_of(slot)) & bit_of(slot)) != 0;
  }
  void remove(std::uint32_t slot) noexcept { take(slot); }
  bool is_empty() const noexcept {
    return std::all_of(std::begin(words), std::end(words),
                       [](const auto& word) { return platform::load_seq_cst(word) == 0; });
  }
  bool contains(std::uint32_t slot) const noexcept {
    return (platform::load_seq_cst(words[slot / 64]) & bit_of(slot)) != 0;
  }
  template <class Visit>
  void for_each(Visit visit) const noexcept(noexcept(visit(0u))) {
    for (std::uint32_t i = 0; i < kParticipantWords; ++i) {
      for (std::uint64_t bits = platform::load_acquire(words[i]); bits != 0; bits &= bits - 1) {
        visit(i * 64 + static_cast<std::uint32_t>(std::countr_zero(bits)));
      }
    }
  }
};
static_assert(sizeof(ParticipantSet) == 128);

// A lock's word: 0, or the owner. kContended: somebody may sleep on the word.
constexpr std::uint32_t kHeld = 1u << 30;
constexpr std::uint32_t kContended = 1u << 31;

// A block: its class and its index within the class.
struct BlockId {
  std::uint64_t value = 0;
  static constexpr BlockId make(unsigned size_class, std::uint64_t index) noexcept {
    return BlockId{std::uint64_t{size_class} << 32 | index};
  }
  constexpr unsigned size_class() const noexcept { return static_cast<unsigned>(value >> 32); }
  constexpr std::uint64_t index() const noexcept { return value & 0xffffffffu; }
  constexpr bool operator==(const BlockId&) const noexcept = default;
};

// One use of a block, from its allocation to its release: `generation` tells it from earlier and later ones.
struct BlockRef {
  BlockId id{};
  std::uint32_t generation = 0;
  constexpr bool operator==(const BlockRef&) const noexcept = default;
};

// A BlockRef in one word, never 0: 5 bits of class, 30 of index, 29 of generation. Unpacking any word is safe; whether
// it names a block is for Geometry::contains to say.
constexpr std::uint64_t pack(BlockRef ref) noexcept {
  return std::uint64_t{ref.id.size_class() - kMinClass + 1} << 59 | ref.id.index() << 29 | ref.generation;
}
constexpr BlockRef unpack(std::uint64_t word) noexcept {
  return BlockRef{BlockId::make(static_cast<unsigned>(word >> 59) + kMinClass - 1, word >> 29 & 0x3fffffff),
                  static_cast<std::uint32_t>(word) & 0x1fffffffu};
}

enum class BlockState : std::uint32_t { kFree = 0, kWriting = 1, kLive = 2 };

// A block's word: state, the writer while it is being written, and the generation, which outlives the state.
constexpr std::uint64_t block_word(BlockState state, Identity writer, std::uint32_t generation) noexcept {
  return std::uint64_t{static_cast<std::uint32_t>(state)} << 62 | std::uint64_t{writer} << 32 | generation;
}
// Store it with seq_cst. The storing process then reads the holder bits; a process that undoes an optimistic pin clears
// its bit, then reads the word. So at least one sees the other's change (Reclaimer::collect_after_doubt).
constexpr std::uint64_t live_word(std::uint32_t generation) noexcept {
  return block_word(BlockState::kLive, kNobody, generation);
}
constexpr BlockState state_of(std::uint64_t word) noexcept {
  return static_cast<BlockState>(word >> 62);
}
constexpr Identity writer_of(std::uint64_t word) noexcept {
  return static_cast<Identity>(word >> 32 & 0x3fffffffu);
}
// Generations wrap at 29 bits, so that a BlockRef packs into one word.
constexpr std::uint32_t kBlockGenerationMask = 0x1fffffffu;
constexpr std::uint32_t generation_of_block(std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(word);
}
constexpr std::uint32_t next_generation(std::uint64_t word) noexcept {
  return (generation_of_block(word) + 1) & kBlockGenerationMask;
}

enum class BlockKind : std::uint32_t {
  kMessage = 1,        // a frame
  kArray = 2,          // memory handed to the user to write in place
  kSegment = 3,        // a piece of a channel's ring
  kDeliveries = 4,     // a channel's delivery records, or transfers of the arena
  kChannel = 5,        // a channel's control block; what it holds is found by the channel layer's walker
  kReplay = 6,         // a replay buffer's control block; its list of references names the next kind
  kExtent = 7,         // rows of a replay buffer
  kLatest = 8,         // a Latest's control block; its list of references names the next kind
  kPublished = 9,      // a frame that a Latest, or a Broadcast, names
  kBroadcast = 10,     // a Broadcast's control block; its list of references names such frames
  kSubscription = 11,  // a subscription to one that nobody has claimed
};                     // 12 was in use up to version 6
// Whether a channel may keep a block of that kind, of which nothing else tells: then only a recovery can say that
// nobody does.
constexpr bool may_be_queued(std::uint32_t kind) noexcept {
  return kind < static_cast<std::uint32_t>(BlockKind::kReplay) && kind != static_cast<std::uint32_t>(BlockKind::kArray);
}

enum BlockFlag : std::uint32_t {
  kCountedHeld = 1,  // its bytes are part of ArenaHeader::held_bytes, of the epoch in the upper 16 bits
  kDelivered = 2,    // a delivery record keeps it; changed under its channel's receivers' lock
  kTrimmed = 4,      // only its first `size` bytes have pages: whoever frees it lowers `committed`
};
constexpr std::uint32_t kFlagMask = 0xffff;

// ArenaHeader::held_bytes is counted without a lock while reconcile() counts anew. Its upper 16 bits are the number of
// the count, which every counted block carries too, so that each of two sides can tell what the other has seen.
constexpr std::uint64_t kHeldMask = (std::uint64_t{1} << 48) - 1;
constexpr std::uint32_t held_epoch(std::uint64_t held) noexcept {
  return static_cast<std::uint32_t>(held >> 48);
}
constexpr std::uint32_t counted_in(std::uint32_t flags, std::uint32_t epoch) noexcept {
  return (flags & kFlagMask) | kCountedHeld | epoch << 16;
}

// 192 bytes: the first line is written by whoever owns the block or the arena lock, the others by every holder.
//
//   0 word  8 committed  16 size  24 list offset  32 list length  36 refcount  40 kind  44 flags  48 next free
//   56 since  64 holders
struct BlockEntry {
  std::atomic<std::uint64_t> word;
  std::atomic<std::uint64_t> committed;    // bytes from the block's start that have pages: never less than is true
  std::atomic<std::uint64_t> size;         // bytes asked for
  std::atomic<std::uint64_t> list_offset;  // where in the block its list of referred-to blocks begins
  std::atomic<std::uint32_t> list_length;  // written after the list
  std::atomic<std::uint32_t> refcount;     // derived: lists of other blocks, and transfers, that name this one
  std::atomic<std::uint32_t> kind;
  std::atomic<std::uint32_t> flags;      // derived: BlockFlag
  std::atomic<std::uint64_t> next_free;  // derived: index + 1 of the next block in its free list; while references
                                         // are dropped, the next packed BlockRef to look at
  std::atomic<std::int64_t> since_ns;    // when it was last taken hold of (coarse monotonic clock)
  ParticipantSet holders;
};
static_assert(sizeof(BlockEntry) == 192 && offsetof(BlockEntry, holders) == 64);

inline bool is_kind(const BlockEntry& entry, BlockKind kind) noexcept {
  return platform::load_relaxed(entry.kind) == static_cast<std::uint32_t>(kind);
}
// What `committed` says, as far as it can be: a block of this class has no more bytes.
inline std::uint64_t committed_of(const BlockEntry& entry, unsigned size_class) noexcept {
  return std::min(platform::load_acquire(entry.committed), std::uint64_t{1} << size_class);
}

// Maximum blocks that a message may refer to. Other lists are as long as their makers need.
constexpr std::uint64_t kMostReferences = std::uint64_t{1} << 20;

// One entry of a block's list of the blocks it refers to; lives in the block.
struct ListEntry {
  std::uint64_t id;
  std::uint64_t generation;
};
inline BlockRef ref_of(const ListEntry& item) noexcept {
  return BlockRef{BlockId{platform::load_once(item.id)},
                  static_cast<std::uint32_t>(platform::load_once(item.generation))};
}

// Begins a block of a chain: delivery records of a channel, or transfers. The elements follow it.
struct alignas(64) ChainHeader {
  std::uint64_t count;
  std::atomic<std::uint64_t> next;  // packed BlockRef of a block of more, 0 when there is none
  std::uint64_t unused[6];
};
static_assert(sizeof(ChainHeader) == 64);
constexpr std::uint64_t chain_bytes(std::uint64_t count, std::uint64_t element_bytes) noexcept {
  return sizeof(ChainHeader) + count * element_bytes;
}

// What a transfer hands over.
enum class Transferred : std::uint32_t {
  kSendingEnd = 0,
  kReceivingEnd = 1,
  kMemory = 2,    // a block, or the arena as such
  kBeingMade = 3  // the giver has the place, and has not said what it hands over
};
// Something that was pickled and not yet loaded (transfer_table.h).
struct Transfer {
  std::atomic<std::uint64_t> state;   // 0 when the place is free
  std::atomic<std::uint64_t> block;   // packed BlockRef of what is handed over, 0 for the arena as such
  std::atomic<std::int64_t> made_ns;  // for messages only
};
static_assert(sizeof(Transfer) == 24);
constexpr std::uint32_t kFirstTransfers = 64;

enum class ParticipantStatus : std::uint32_t {
  kFree = 0,
  kAttached = 1,
  kDetached = 2,  // it is about to exit; what it still holds ends with its lock
  kStale = 3,     // a newcomer owns the slot and what its predecessor left must be swept before anything is held
};

constexpr std::uint32_t kDeferredFrees = 96;

// What a thread sleeps for.
enum class WaitFor : std::uint32_t {
  kNothing = 0,      // the place is free
  kUnsaid = 1,       // and this one is being written
  kMessage = 2,      // of a channel or a Broadcast
  kRoom = 3,         // in one
  kMemory = 4,       // of the arena; for a channel, if that has no room for want of it
  kAcks = 5,         // of messages of a channel or a Broadcast
  kTasks = 6,        // of a queue, to be done
  kReservation = 7,  // of an end of a channel
  kNewer = 8,        // version of a Latest, or of a shared array
  kRows = 9,         // of a replay buffer
  kRateLimit = 10,   // of one
  kArray = 11,       // that others read or write
  kLock = 12,        // of whatever the owner has it of
};
// Whether both are sleep of the same SleepTime of one channel.
constexpr bool is_counted_with(WaitFor a, WaitFor b) noexcept {
  const auto is_for_room = [](WaitFor what) { return what == WaitFor::kRoom || what == WaitFor::kMemory; };
  return (a == WaitFor::kMessage && b == WaitFor::kMessage) || (is_for_room(a) && is_for_room(b));
}

constexpr std::uint32_t kMostWaits = 8;
// Set beside a WaitFor: the call has no deadline, and `threads` of its participant counts all that the process had
// then.
constexpr std::uint32_t kWaitsForEver = 1u << 31;
constexpr WaitFor what_of_wait(std::uint32_t word) noexcept {
  return static_cast<WaitFor>(word & ~kWaitsForEver);
}
// A thread that sleeps (sleep.h).
struct Wait {
  std::atomic<std::uint64_t> about;    // packed BlockRef of what it sleeps at, 0: the arena; of a lock, its owner
  std::atomic<std::int64_t> since_ns;  // when the call began to wait
  std::atomic<std::uint32_t> what;     // WaitFor, and kWaitsForEver
  std::atomic<std::int32_t> thread;    // its number in its own PID namespace, for messages only
};
static_assert(sizeof(Wait) == 24);

// 1 KiB. A participant lives while byte `slot` of the file is locked.
struct alignas(64) Participant {
  std::atomic<std::uint32_t> generation;
  std::atomic<std::uint32_t> status;
  std::atomic<std::int32_t> pid;                 // in its own PID namespace: for error messages and wake pipes
  std::atomic<std::uint32_t> deferred_overflow;  // frees that found the list full: only a reconcile finds them
  std::atomic<std::int64_t> attached_ns;
  std::atomic<std::uint32_t> pinned;        // the generation of the owner that has pages registered for DMA; 0: none
  std::atomic<std::uint32_t> wake_entries;  // number in use of its table; later ones mean nothing (wake_table.h)
  Wait waits[kMostWaits];
  std::atomic<std::uint32_t> threads;  // of the process: those that run Python, in a program that is Python's, else all
  std::uint32_t unused;
  std::atomic<std::uint64_t> hub_address;  // WakeAddress of the process's hub (channel/wake_hub.h); 0: no hub
  std::uint64_t reserved[2];
  std::atomic<std::uint64_t> deferred_frees[kDeferredFrees];  // deferred-free list: packed BlockRefs
};
static_assert(sizeof(Participant) == 1024 && offsetof(Participant, waits) == 32);
static_assert(offsetof(Participant, wake_entries) == 28 && offsetof(Participant, hub_address) == 232);

// The wake pipe of a participant for one end of a channel. Only that participant writes its table. `channel` changes
// only while `address` is 0.
struct WakeEntry {
  std::atomic<std::uint64_t> channel;  // packed BlockRef
  std::atomic<std::uint64_t> address;  // platform::WakeAddress, and the number of the end in bit 63; 0: free
};
static_assert(sizeof(WakeEntry) == 16);
constexpr std::uint32_t kMaxWakeEntries = 4096;
constexpr std::uint64_t kWakeTableBytes = kMaxWakeEntries * sizeof(WakeEntry);
static_assert(kWakeTableBytes % kMostPageBytes == 0);

// How long somebody slept for one thing, and who does now (sleep.h).
struct alignas(64) SleepTime {
  ParticipantSet who;
  std::atomic<std::int64_t> since_ns;   // from when on it is not counted yet; 0: nobody sleeps
  std::atomic<std::uint64_t> slept_ns;  // in all; time in which several slept is counted once
};
static_assert(sizeof(SleepTime) == 192);

// Whoever publishes looks at `waiters` and, when it is set, takes it back, moves `sequence` and wakes; whoever waits
// sets it. Only changed or unchanged counts, so wrapping is harmless and a dead waiter costs nothing.
struct alignas(64) Event {
  std::atomic<std::uint32_t> sequence;
  std::atomic<std::uint32_t> waiters;
};
static_assert(sizeof(Event) == 64);

// Under the arena lock; all derived.
struct ClassState {
  std::atomic<std::uint64_t> high;             // entries at and above were never used
  std::atomic<std::uint64_t> table_committed;  // entries whose table pages exist; >= high
  // Free blocks, by index + 1.
  std::atomic<std::uint64_t> cold;           // without pages: a stack
  std::atomic<std::uint64_t> warm;           // with pages: a stack
  std::atomic<std::uint64_t> resting_first;  // with pages, freed lately by their readers: a queue
  std::atomic<std::uint64_t> resting_last;
  std::atomic<std::uint64_t> resting_count;
  std::atomic<std::uint64_t> last_freed;  // ArenaHeader::frees when the last one was freed
};
static_assert(sizeof(ClassState) == 64);

struct alignas(64) ArenaHeader {
  // Written once, before the file is handed to anyone.
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t header_bytes;
  unsigned char uuid[16];
  std::uint64_t max_bytes;
  std::uint64_t file_bytes;
  std::uint64_t flags;
  std::uint64_t unused;

  alignas(64) std::atomic<std::uint32_t> arena_lock;
  std::atomic<std::uint32_t> participants_high;  // slots at and above were never used

  alignas(64) std::atomic<std::uint32_t> recovery_requests;  // since the last recovery; 0: derived state is right
  std::atomic<std::uint32_t> reconcile_lock;
  std::atomic<std::uint32_t> deferred_hint;       // some list of deferred frees is not empty
  std::atomic<std::uint32_t> abandoned_channels;  // that nobody holds any more, left for the next recovery
  std::atomic<std::int64_t> last_check_ns;        // when somebody last looked who is alive
  std::atomic<std::uint64_t> reconciles;          // how many there have been, for stats

  // Under the arena lock; derived.
  alignas(64) std::atomic<std::uint64_t> committed_bytes;  // pages of all blocks
  std::atomic<std::uint64_t> used_bytes;                   // of those, in blocks that are not free
  std::atomic<std::uint64_t> held_bytes;                   // of those, in blocks that left a queue or never enter one
  std::atomic<std::uint32_t> freed;                        // a block was freed since the last wake-up of `space`
  std::atomic<std::uint64_t> peak_used[2];                 // most used in this and the last window of 10 s
  std::atomic<std::int64_t> peak_window;                   // number of this window
  std::atomic<std::uint64_t> frees;                        // blocks freed so far: the age of a class's free pages

  Event space;  // memory was given back

  alignas(64) ClassState classes[kClasses];
  ClassState& class_state(unsigned size_class) noexcept { return classes[size_class - kMinClass]; }

  alignas(64) Transfer transfers[kFirstTransfers];
  std::atomic<std::uint64_t> more_transfers;  // truth: packed BlockRef of the first block of more, 0: there is none
};
constexpr std::uint64_t kHeaderBytes = 16384;
static_assert(sizeof(ArenaHeader) <= kHeaderBytes);
static_assert(offsetof(ArenaHeader, arena_lock) == 64 && offsetof(ArenaHeader, recovery_requests) == 128);
static_assert(offsetof(ArenaHeader, transfers) == 2304 && offsetof(ArenaHeader, more_transfers) == 3840);

// Derived state is wrong from now on, until a reconcile.
inline void request_recovery(ArenaHeader& header) noexcept {
  platform::add(header.recovery_requests, 1u);
}
inline bool needs_recovery(const ArenaHeader& header) noexcept {
  return platform::load_acquire(header.recovery_requests) != 0;
}

constexpr std::uint64_t kRegionAlignment = 2u << 20;  // a huge page
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

// Where everything is, as a function of the budget alone; and how a process goes about it whose system has pages larger
// than the smallest blocks: it uses none of the classes below a page, since such blocks would share their pages.
class Geometry {
 public:
  explicit Geometry(std::uint64_t max_bytes, std::uint64_t page_bytes = kPageBytes) noexcept;

  // What pages hold `bytes`, which are one at least.
  std::uint64_t round_to_pages(std::uint64_t bytes) const noexcept {
    return (bytes + page_bytes_ - 1) & ~(page_bytes_ - 1);
  }

  std::uint64_t file_bytes() const noexcept { return file_bytes_; }
  std::uint64_t control_bytes() const noexcept {
    return kHeaderBytes + std::uint64_t{kMaxParticipants} * sizeof(Participant);
  }
  std::uint64_t wake_table_offset(std::uint32_t slot) const noexcept {
    return round_up(control_bytes(), kRegionAlignment) + slot * kWakeTableBytes;
  }
  unsigned max_class() const noexcept { return max_class_; }
  // The class of the smallest block that takes `bytes`; above max_class() when none does.
  unsigned class_for(std::uint64_t bytes) const noexcept {
    return static_cast<unsigned>(std::bit_width(std::max(bytes, page_bytes_) - 1));
  }

  std::uint64_t count(unsigned size_class) const noexcept { return count_[size_class - kMinClass]; }
  std::uint64_t table_offset(unsigned size_class, std::uint64_t index) const noexcept {
    return table_[size_class - kMinClass] + index * sizeof(BlockEntry);
  }
  std::uint64_t data_offset(BlockId id) const noexcept {
    return data_[id.size_class() - kMinClass] + (id.index() << id.size_class());
  }
  // Whether a number read from shared memory names a block at all.
  bool contains(BlockId id) const noexcept {
    const unsigned size_class = id.size_class();
    return size_class >= kMinClass && size_class <= max_class_ && id.index() < count(size_class);
  }

 private:
  std::uint64_t page_bytes_;
  unsigned max_class_;
  std::uint64_t file_bytes_;
  std::uint64_t count_[kClasses]{};
  std::uint64_t table_[kClasses]{};
  std::uint64_t data_[kClasses]{};
};

}  // namespace shmtree::memory
