// The layout of an arena file: everything that processes share, except the contents of the channel layer's blocks.
//
//   offset 0            ArenaHeader                                   16 KiB
//   16 KiB              Participant[1024]                             1 MiB; a page is touched when a slot needs it
//   2 MiB               WakeEntry[1024][4096]                         64 MiB; a page is touched when a slot needs it
//   then, per class k   BlockEntry[count(k)]                          the block table, committed as it grows
//   then, per class k   count(k) blocks of 2^k bytes                  the data, committed as messages need it
//
// Words that different processes write concurrently are on separate cache lines, against false sharing. The file is
// sparse, so offsets cost nothing: each class has offsets for at least twice the budget and cannot run out of them
// before the budget is used up. Integers are little-endian. State is either primary or derived:
//   primary     BlockEntry::{word, committed, size, list of references and its length, kind, holders},
//               Participant::{generation, status, pinned}, the transfers; channels add their ring windows and delivery
//               records
//   derived     everything else; reconcile() rebuilds it from the primary state
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "platform/atomics.h"
#include "platform/dcheck.h"

namespace shmtree::memory {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kMagic = 0x616e657261746d73;  // "smtarena"
constexpr std::uint32_t kVersion = 10;
constexpr const char* kFileName = "shmtree";  // shown in /proc
constexpr std::uint32_t kMaxParticipants = 1024;
constexpr std::uint32_t kParticipantWords = kMaxParticipants / 64;
constexpr unsigned kMinClass = 12;  // 4 KiB: one page
constexpr unsigned kMaxClass = 42;  // 4 TiB
constexpr unsigned kClasses = kMaxClass - kMinClass + 1;
constexpr std::uint64_t kPageBytes = 4096;  // smallest page size of a supported system; see Geometry
constexpr std::uint64_t kMaxPageBytes = 65536;
constexpr std::uint64_t kTableStep = 1024;                    // table entries that are committed at a time
constexpr std::uint64_t kMaxBudget = std::uint64_t{2} << 40;  // keeps a block index within 30 bits

// Names a participant: 10 bits of slot and 20 bits of the slot's generation. Never 0 for an attached process.
using Identity = std::uint32_t;
constexpr Identity kNoIdentity = 0;
constexpr Identity make_identity(std::uint32_t slot, std::uint32_t generation) noexcept {
  SHMTREE_DCHECK(slot < kMaxParticipants);
  return (generation & 0xfffffu) << 10 | slot;
}
constexpr std::uint32_t slot_of(Identity identity) noexcept {
  return identity & 0x3ffu;
}
constexpr std::uint32_t generation_of(Identity identity) noexcept {
  return identity >> 10 & 0xfffffu;
}

// A set of participants, one bit each. All operations but for_each() are sequentially consistent. So in a Dekker
// handshake, in which each side stores its own word and then reads the other's, at least one side sees the other.
struct alignas(64) ParticipantSet {
  std::atomic<std::uint64_t> words[kParticipantWords];

  static constexpr std::uint64_t bit_of(std::uint32_t slot) noexcept {
    SHMTREE_DCHECK(slot < kMaxParticipants);
    return std::uint64_t{1} << (slot % 64);
  }
  // add() and take() return true if they changed the set.
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

// A lock's word: 0 if it is free, else kHeld and the owner's identity. kContended: a thread may sleep on the word.
constexpr std::uint32_t kHeld = 1u << 30;
constexpr std::uint32_t kContended = 1u << 31;

// Names a block: its size class, and its index within the class.
struct BlockId {
  std::uint64_t value = 0;
  static constexpr BlockId make(unsigned size_class, std::uint64_t index) noexcept {
    return BlockId{std::uint64_t{size_class} << 32 | index};
  }
  constexpr unsigned size_class() const noexcept { return static_cast<unsigned>(value >> 32); }
  constexpr std::uint64_t index() const noexcept { return value & 0xffffffffu; }
  constexpr bool operator==(const BlockId&) const noexcept = default;
};

// Names one use of a block, from its allocation until it is freed. `generation` tells it from earlier and later uses.
struct BlockRef {
  BlockId id{};
  std::uint32_t generation = 0;
  constexpr bool operator==(const BlockRef&) const noexcept = default;
};

// Packs a BlockRef into one word, never 0: 5 bits of class, 30 of index, 29 of generation. Any word can be unpacked;
// Geometry::contains checks that the result names a block.
constexpr std::uint64_t pack(BlockRef ref) noexcept {
  return std::uint64_t{ref.id.size_class() - kMinClass + 1} << 59 | ref.id.index() << 29 | ref.generation;
}
constexpr BlockRef unpack(std::uint64_t word) noexcept {
  return BlockRef{BlockId::make(static_cast<unsigned>(word >> 59) + kMinClass - 1, word >> 29 & 0x3fffffff),
                  static_cast<std::uint32_t>(word) & 0x1fffffffu};
}

enum class BlockState : std::uint32_t { kFree = 0, kWriting = 1, kLive = 2 };

// A block's word: the state, the writer's identity during kWriting, and the generation, which a free block keeps.
constexpr std::uint64_t block_word(BlockState state, Identity writer, std::uint32_t generation) noexcept {
  return std::uint64_t{static_cast<std::uint32_t>(state)} << 62 | std::uint64_t{writer} << 32 | generation;
}
// Store it with seq_cst. The storing process then reads the holder bits; a process that undoes an optimistic pin clears
// its bit, then reads the word. So at least one sees the other's change (Reclaimer::collect_after_failed_pin).
constexpr std::uint64_t live_word(std::uint32_t generation) noexcept {
  return block_word(BlockState::kLive, kNoIdentity, generation);
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

// kChannel, kReplay, kLatest and kBroadcast are control blocks. The channel layer's walker finds the blocks that a
// channel keeps. The others have a list of references: kReplay to kExtent, kLatest and kBroadcast to kPublished.
enum class BlockKind : std::uint32_t {
  kMessage = 1,        // a frame
  kArray = 2,          // memory that the user writes in place
  kSegment = 3,        // a piece of a channel's ring
  kDeliveries = 4,     // delivery records or tap notes of a channel, or transfers of the arena
  kChannel = 5,        // control block of a channel
  kReplay = 6,         // control block of a replay buffer
  kExtent = 7,         // rows of a replay buffer
  kLatest = 8,         // control block of a Latest
  kPublished = 9,      // a frame of a Latest or a Broadcast
  kBroadcast = 10,     // control block of a Broadcast
  kSubscription = 11,  // an unclaimed subscription to a Broadcast
};                     // 12 was in use up to version 6
// Returns true if a channel may keep a block of this kind. No refcount shows that, so only a recovery can prove that no
// channel keeps the block.
constexpr bool may_be_queued(std::uint32_t kind) noexcept {
  return kind < static_cast<std::uint32_t>(BlockKind::kReplay) && kind != static_cast<std::uint32_t>(BlockKind::kArray);
}

enum BlockFlag : std::uint32_t {
  kCountedHeld = 1,  // counted in ArenaHeader::held_bytes, in the epoch that the upper 16 bits contain
  kDelivered = 2,    // a delivery record keeps the block; changed under the receivers' lock of its channel
  // Only the first `size` bytes have pages: the process that frees the block lowers `committed`.
  kTrimmed = 4,
  kCarriesTransfers = 8,  // carries transfers, also of another arena: they end when the block is freed
};
constexpr std::uint32_t kFlagMask = 0xffff;

// Processes update ArenaHeader::held_bytes without a lock, even while reconcile() recounts it. The upper 16 bits are an
// epoch, which each recount increments. Each counted block carries the epoch in which it was counted, so that both
// sides can tell what the other has seen.
constexpr std::uint64_t kHeldMask = (std::uint64_t{1} << 48) - 1;
constexpr std::uint32_t held_epoch(std::uint64_t held) noexcept {
  return static_cast<std::uint32_t>(held >> 48);
}
constexpr std::uint32_t counted_in(std::uint32_t flags, std::uint32_t epoch) noexcept {
  return (flags & kFlagMask) | kCountedHeld | epoch << 16;
}

// 192 bytes. The first cache line is written by the block's owner or under the arena lock, the others by every holder.
struct BlockEntry {
  std::atomic<std::uint64_t> word;       // state, writer and generation
  std::atomic<std::uint64_t> committed;  // bytes from the block's start that have pages: never too few
  std::atomic<std::uint64_t> size;       // requested bytes
  // Offset in the block of the list of references. Its length is stored after the list.
  std::atomic<std::uint64_t> list_offset;
  std::atomic<std::uint32_t> list_length;  // in entries
  std::atomic<std::uint32_t> refcount;     // derived: references from lists of other blocks and from transfers
  std::atomic<std::uint32_t> kind;         // BlockKind
  std::atomic<std::uint32_t> flags;        // derived: BlockFlag
  // Derived: index + 1 of the next block in its free list. While references are dropped: packed BlockRef of the next
  // block to check.
  std::atomic<std::uint64_t> next_free;
  std::atomic<std::int64_t> since_ns;  // when it was last pinned (coarse monotonic clock)
  ParticipantSet holders;              // a bit for each participant that has the block pinned
};
static_assert(sizeof(BlockEntry) == 192 && offsetof(BlockEntry, holders) == 64);

inline bool is_kind(const BlockEntry& entry, BlockKind kind) noexcept {
  return platform::load_relaxed(entry.kind) == static_cast<std::uint32_t>(kind);
}
// Returns `committed`, at most the size of a block of this class: the word may be damaged.
inline std::uint64_t committed_of(const BlockEntry& entry, unsigned size_class) noexcept {
  return std::min(platform::load_acquire(entry.committed), std::uint64_t{1} << size_class);
}

// Maximum number of blocks that a message may refer to. Lists of other kinds may be longer.
constexpr std::uint64_t kMaxReferences = std::uint64_t{1} << 20;

// An entry of a block's list of references, which is stored in the block.
struct ListEntry {
  std::uint64_t id;          // size class in the upper half, index in the lower half
  std::uint64_t generation;  // of the block
};
inline BlockRef ref_of(const ListEntry& item) noexcept {
  return BlockRef{BlockId{platform::load_once(item.id)},
                  static_cast<std::uint32_t>(platform::load_once(item.generation))};
}

// The header of a block in a chain of delivery records or transfers. The elements follow it.
struct alignas(64) ChainHeader {
  std::uint64_t count;              // of elements
  std::atomic<std::uint64_t> next;  // packed BlockRef of the next block; 0: none
  std::uint64_t unused[6];
};
static_assert(sizeof(ChainHeader) == 64);
constexpr std::uint64_t chain_bytes(std::uint64_t count, std::uint64_t element_bytes) noexcept {
  return sizeof(ChainHeader) + count * element_bytes;
}

// The kind of object that a transfer hands over.
enum class Transferred : std::uint32_t {
  kSendingEnd = 0,    // of a channel
  kReceivingEnd = 1,  // of a channel
  kMemory = 2,        // a block, or the arena itself
  kBeingMade = 3      // the giver has claimed the entry and not filled it in yet
};
// An object in transit: pickled, and not yet unpickled (transfer_table.h).
struct Transfer {
  std::atomic<std::uint64_t> state;    // 0: the entry is free
  std::atomic<std::uint64_t> block;    // packed BlockRef of the object's block; 0: the arena itself
  std::atomic<std::int64_t> made_ns;   // when it began; for reports only
  std::atomic<std::uint64_t> carrier;  // packed BlockRef of the message with the handle; 0: none in this arena
};
static_assert(sizeof(Transfer) == 32);
constexpr std::uint32_t kFirstTransfers = 64;

enum class ParticipantStatus : std::uint32_t {
  kFree = 0,      // no owner
  kAttached = 1,  // in use
  kDetached = 2,  // about to exit; what it still holds is released once it has exited
  kStale = 3,     // new owner of a dead process's slot; holds nothing until a reconcile has swept the slot
};

constexpr std::uint32_t kDeferredFrees = 92;
constexpr std::uint32_t kNameWords = 6;

// The condition that a thread sleeps for.
enum class WaitFor : std::uint32_t {
  kNothing = 0,      // none: the entry is free
  kUnsaid = 1,       // the entry is being written
  kMessage = 2,      // in a channel or a Broadcast
  kSpace = 3,        // in a channel or a Broadcast
  kMemory = 4,       // of the arena, also for a message of a channel
  kAcks = 5,         // of messages of a channel
  kTasks = 6,        // of a queue, to be done
  kReservation = 7,  // of an end of a channel
  kNewer = 8,        // a newer version of a Latest or a shared array
  kRows = 9,         // of a replay buffer
  kRateLimit = 10,   // of a replay buffer
  kArray = 11,       // a shared array that other processes read or write
  kLock = 12,        // of any object
};
// Returns true if a channel counts the sleeps for both conditions in one SleepTime.
constexpr bool is_counted_with(WaitFor a, WaitFor b) noexcept {
  const auto is_for_space = [](WaitFor what) { return what == WaitFor::kSpace || what == WaitFor::kMemory; };
  return (a == WaitFor::kMessage && b == WaitFor::kMessage) || (is_for_space(a) && is_for_space(b));
}

constexpr std::uint32_t kMaxWaits = 8;
// Flag in the word of a WaitFor: the call has no deadline, and has stored the process's `threads` for this sleep.
constexpr std::uint32_t kWaitsForEver = 1u << 31;
constexpr WaitFor what_of_wait(std::uint32_t word) noexcept {
  return static_cast<WaitFor>(word & ~kWaitsForEver);
}
// A sleeping thread (sleep.h).
struct Wait {
  std::atomic<std::uint64_t> about;    // of a lock: its owner; else packed BlockRef of the object, 0 for the arena
  std::atomic<std::int64_t> since_ns;  // when the call began to wait
  std::atomic<std::uint32_t> what;     // WaitFor, and kWaitsForEver
  std::atomic<std::int32_t> thread;    // thread id in its PID namespace; for reports only
};
static_assert(sizeof(Wait) == 24);

// 1 KiB. A participant is alive while byte `slot` of the file is locked.
struct alignas(64) Participant {
  std::atomic<std::uint32_t> generation;         // incremented for each owner of the slot
  std::atomic<std::uint32_t> status;             // ParticipantStatus
  std::atomic<std::int32_t> pid;                 // in its own PID namespace: for error messages and wake pipes
  std::atomic<std::uint32_t> deferred_overflow;  // 1: a free found the list full; only a reconcile finds the block
  std::atomic<std::int64_t> attached_ns;         // monotonic clock
  std::atomic<std::uint32_t> pinned;             // generation of the owner that has pages registered for DMA; 0: none
  std::atomic<std::uint32_t> wake_entries;       // number of its wake table's entries in use (wake_table.h)
  Wait waits[kMaxWaits];                         // of sleeping threads
  std::atomic<std::uint32_t> threads;            // of the process; in a Python program, those that run Python
  std::atomic<std::uint32_t> starting;           // generation of a forked child that has not stored its pid yet
  std::atomic<std::uint64_t> hub_address;        // WakeAddress of the process's hub (channel/wake_hub.h); 0: no hub
  std::atomic<std::uint64_t> name[kNameWords];   // of the process in multiprocessing: UTF-8, padded with zeros
  std::atomic<std::uint64_t> deferred_frees[kDeferredFrees];  // deferred-free list: packed BlockRefs
};
static_assert(sizeof(Participant) == 1024 && offsetof(Participant, waits) == 32);
static_assert(offsetof(Participant, wake_entries) == 28 && offsetof(Participant, hub_address) == 232);
static_assert(offsetof(Participant, name) == 240 && offsetof(Participant, deferred_frees) == 288);

// The wake pipe of a participant for one end of a channel. Only that participant writes its table. `channel` changes
// only while `address` is 0.
struct WakeEntry {
  std::atomic<std::uint64_t> channel;  // packed BlockRef
  std::atomic<std::uint64_t> address;  // platform::WakeAddress, and the number of the end in bit 63; 0: free
};
static_assert(sizeof(WakeEntry) == 16);
constexpr std::uint32_t kMaxWakeEntries = 4096;
constexpr std::uint64_t kWakeTableBytes = kMaxWakeEntries * sizeof(WakeEntry);
static_assert(kWakeTableBytes % kMaxPageBytes == 0);

// The time that threads have slept for one condition, and the processes that sleep for it now (sleep.h).
struct alignas(64) SleepTime {
  ParticipantSet sleepers;              // participants that sleep now
  std::atomic<std::int64_t> since_ns;   // start of the time not counted yet; 0: no thread sleeps
  std::atomic<std::uint64_t> slept_ns;  // total; time in which several threads slept counts once
};
static_assert(sizeof(SleepTime) == 192);

// A waiter sets `waiters`. A publisher that finds it set clears it, increments `sequence` and wakes sleepers. A sleeper
// only checks that `sequence` changed, so wrapping is harmless. A dead waiter costs at most one needless wake-up.
struct alignas(64) Event {
  std::atomic<std::uint32_t> sequence;  // sleepers wait for a change
  std::atomic<std::uint32_t> waiters;   // 1: a thread may sleep
};
static_assert(sizeof(Event) == 64);

// The free blocks of a class. Derived. Changed under the arena lock, except for table_committed.
struct ClassState {
  std::atomic<std::uint64_t> high;             // entries at and above were never used
  std::atomic<std::uint64_t> table_committed;  // entries with committed table pages; >= high

  // Free blocks, by index + 1.
  std::atomic<std::uint64_t> cold;           // without pages: a stack
  std::atomic<std::uint64_t> warm;           // with pages: a stack
  std::atomic<std::uint64_t> resting_first;  // with pages, recently freed by a reader: a queue
  std::atomic<std::uint64_t> resting_last;   // the end of that queue
  std::atomic<std::uint64_t> resting_count;  // its length
  std::atomic<std::uint64_t> last_freed;     // ArenaHeader::frees when a block was last freed
};
static_assert(sizeof(ClassState) == 64);

struct alignas(64) ArenaHeader {
  // Written once, before any other process has the file.
  std::uint64_t magic;         // "smtarena"
  std::uint32_t version;       // kVersion
  std::uint32_t header_bytes;  // size of this structure
  unsigned char uuid[16];      // random; identifies the arena in a handle
  std::uint64_t max_bytes;     // the budget
  std::uint64_t file_bytes;    // follows from the budget
  std::uint64_t flags;         // bit 0: the arena uses huge pages
  std::uint64_t unused;

  alignas(64) std::atomic<std::uint32_t> arena_lock;  // guards free lists, counts and frees
  std::atomic<std::uint32_t> participants_high;       // slots at and above were never used

  alignas(64) std::atomic<std::uint32_t> recovery_requests;  // since the last recovery; 0: derived state is correct
  std::atomic<std::uint32_t> reconcile_lock;                 // one recovery at a time
  std::atomic<std::uint32_t> deferred_hint;                  // 1: a deferred-free list may not be empty
  std::atomic<std::uint32_t> abandoned_channels;             // that no process holds, for the next recovery
  std::atomic<std::int64_t> last_check_ns;                   // when a process last checked for deaths
  std::atomic<std::uint64_t> reconciles;                     // number of recoveries; for statistics

  // Derived. Changed under the arena lock, except for held_bytes.
  alignas(64) std::atomic<std::uint64_t> committed_bytes;  // bytes of all blocks that have pages
  std::atomic<std::uint64_t> used_bytes;                   // of those, in blocks that are not free
  // 48 bits: the part of used_bytes in blocks that have left a queue or never enter one. The upper 16 bits: epoch.
  std::atomic<std::uint64_t> held_bytes;
  std::atomic<std::uint32_t> freed;         // 1: a block was freed since the last wake-up of `space`
  std::atomic<std::uint64_t> peak_used[2];  // maximum of used_bytes in this window of 10 s, and in the last
  std::atomic<std::int64_t> peak_window;    // number of this window
  std::atomic<std::uint64_t> frees;         // number of blocks freed so far: dates a class's free pages

  Event space;  // a block was freed

  alignas(64) ClassState classes[kClasses];  // by size class, from the smallest
  ClassState& class_state(unsigned size_class) noexcept {
    SHMTREE_DCHECK(size_class >= kMinClass && size_class <= kMaxClass);
    return classes[size_class - kMinClass];
  }

  alignas(64) Transfer transfers[kFirstTransfers];  // the first ones
  std::atomic<std::uint64_t> more_transfers;  // primary: packed BlockRef of the first block of more transfers; 0: none
};
constexpr std::uint64_t kHeaderBytes = 16384;
static_assert(sizeof(ArenaHeader) <= kHeaderBytes);
static_assert(offsetof(ArenaHeader, arena_lock) == 64 && offsetof(ArenaHeader, recovery_requests) == 128);
static_assert(offsetof(ArenaHeader, transfers) == 2304 && offsetof(ArenaHeader, more_transfers) == 4352);

// Marks derived state as wrong until a reconcile.
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

// The offsets in the file, as a function of the budget alone. A process with pages larger than the smallest blocks
// does not use the classes below its page size, since such blocks would share pages.
class Geometry {
 public:
  explicit Geometry(std::uint64_t max_bytes, std::uint64_t page_bytes = kPageBytes) noexcept;

  // Returns `bytes`, at least 1, rounded up to whole pages.
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
  // Returns the class of the smallest block that holds `bytes`; above max_class() if none does.
  unsigned class_for(std::uint64_t bytes) const noexcept {
    return static_cast<unsigned>(std::bit_width(std::max(bytes, page_bytes_) - 1));
  }

  std::uint64_t count(unsigned size_class) const noexcept {
    SHMTREE_DCHECK(size_class >= kMinClass && size_class <= max_class_);
    return count_[size_class - kMinClass];
  }
  std::uint64_t table_offset(unsigned size_class, std::uint64_t index) const noexcept {
    SHMTREE_DCHECK(index <= count(size_class));
    return table_[size_class - kMinClass] + index * sizeof(BlockEntry);
  }
  std::uint64_t data_offset(BlockId id) const noexcept {
    SHMTREE_DCHECK(contains(id));
    return data_[id.size_class() - kMinClass] + (id.index() << id.size_class());
  }
  // Returns true if a number read from shared memory names a block.
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
