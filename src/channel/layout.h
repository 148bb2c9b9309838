// A channel in shared memory: one control block, a chain of ring segments, and a chain of delivery records.
//
// Primary state, and the order of stores that keeps it consistent:
//   put    slot, then `tail`, which is the commit point
//          counted: slot, `counted_then`, `counting_tail`, `tail`, `counted`, `counting_tail` := 0
//          with a tap: slot, the tap's note of the message (tap_notes.h), `tail`
//   grow   successor block complete, then the last segment's `next`
//   get    holder bit of the message's block, then `head`; a tap that wants times gets them in its note before `head`
//   take   record written (its state last), then `head`; a record counts only if its ticket is below `head`
//   ack    record state -> free.  nack, or the taker's death: record state -> returned, or -> rejected once the
//          attempts are used up
//   task   `tasks_done` counts the messages that were reported as done. The others below `tail` are unfinished, unless
//          an immediate shutdown discarded them (tasks.h)
//   close  `shutdown`. An immediate shutdown then stores `discarded_from`, and `shutdown` again. Puts and gets check it
//          under their locks
// The window is the tickets [head, tail); returned records come before it. Everything else here is derived state:
// cached indices, byte counts, the tail segment. `senders_lock` guards the words that senders write, and
// `receivers_lock` those that receivers write. Each side reads the other's index without its lock.
//
// A message is put only while tail - head + `also_queued` is below the limit. `cached_head` is never more than head,
// and `also_queued` never less than the number of returned records. So senders may underestimate the free space, but
// never overestimate it.
#pragma once

#include "memory/deaths.h"
#include "memory/layout.h"
#include "platform/atomics.h"

namespace shmtree::channel {

using memory::chain_bytes;
using memory::ChainHeader;
using memory::Event;
using memory::Identity;
using memory::kParticipantWords;
using memory::ParticipantSet;

enum class End : std::uint32_t { kSending = 0, kReceiving = 1 };
constexpr End kEnds[] = {End::kSending, End::kReceiving};
constexpr End other(End end) noexcept {
  return end == End::kSending ? End::kReceiving : End::kSending;
}
// Returns the kind of transfer that hands over `end`.
constexpr memory::Transferred transferred(End end) noexcept {
  return end == End::kSending ? memory::Transferred::kSendingEnd : memory::Transferred::kReceivingEnd;
}
// A pair of values, one for each end of a channel.
template <class T>
struct PerEnd {
  T of[2];
  T& operator[](End end) noexcept { return of[static_cast<std::uint32_t>(end)]; }
  const T& operator[](End end) const noexcept { return of[static_cast<std::uint32_t>(end)]; }
  T* begin() noexcept { return of; }
  T* end() noexcept { return of + 2; }
};

constexpr std::uint64_t kChannelMagic = 0x6e6e616863746d73;  // "smtchann"
constexpr std::uint32_t kChannelVersion = 16;

// One slot of the ring. `block` is a packed BlockRef, or 0 for an inline frame, which then follows the slot.
struct RingSlot {
  std::uint64_t ticket;
  std::uint64_t block;  // packed BlockRef; 0: the frame follows the slot
  std::uint64_t bytes;  // of the frame
  Identity sender;      // participant that put the message
  std::uint32_t unused;

  std::byte* inline_data() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
  const std::byte* inline_data() const noexcept { return reinterpret_cast<const std::byte*>(this + 1); }
};
static_assert(sizeof(RingSlot) == 32);

// There are two slot sizes. A message of 1 KB needs no block in a wide slot, which halves its cost. Deep channels have
// narrow slots, since even the smallest message occupies a whole slot.
constexpr std::uint64_t kNarrowSlotBytes = 512, kWideSlotBytes = 1280;
constexpr std::uint64_t kMaxWideSlots = 1024;
constexpr std::uint64_t slot_bytes_for(std::uint64_t capacity) noexcept {
  return capacity != 0 && capacity <= kMaxWideSlots ? kWideSlotBytes : kNarrowSlotBytes;
}
constexpr bool is_slot_size(std::uint64_t bytes) noexcept {
  return bytes == kNarrowSlotBytes || bytes == kWideSlotBytes;
}
constexpr std::uint64_t inline_bytes(std::uint64_t slot_bytes) noexcept {
  return slot_bytes - sizeof(RingSlot);
}
constexpr std::uint64_t kMaxInlineBytes = inline_bytes(kWideSlotBytes);

// Slots follow the header; ticket t is in slot (t - base) % slots. The last ticket of a segment precedes the first
// ticket of the next segment.
struct alignas(64) SegmentHeader {
  std::uint64_t base;               // first ticket
  std::uint64_t slots;              // a power of two
  std::atomic<std::uint64_t> next;  // packed BlockRef of the successor, 0 when there is none
  std::uint64_t unused[5];
};
static_assert(sizeof(SegmentHeader) == 64);
constexpr std::uint64_t kFirstSlots = 8;
constexpr std::uint64_t kMaxSlots = 16384;
constexpr std::uint64_t segment_bytes(std::uint64_t slots, std::uint64_t slot_bytes) noexcept {
  return sizeof(SegmentHeader) + slots * slot_bytes;
}

// A segment with a checked size. Every process can write to its header, so the header's words are not read again.
struct Segment {
  SegmentHeader* header = nullptr;
  std::uint64_t base = 0;
  std::uint64_t slots = 0;
  std::uint64_t slot_bytes = 0;

  explicit operator bool() const noexcept { return header != nullptr; }
  RingSlot& at(std::uint64_t ticket) const noexcept {
    auto* first = reinterpret_cast<std::byte*>(header + 1);
    return *reinterpret_cast<RingSlot*>(first + ((ticket - base) & (slots - 1)) * slot_bytes);
  }
};

// Returns the segment in a block of `available` bytes. Null if the header does not describe a valid segment of that
// size.
inline Segment checked_segment(std::byte* block, std::uint64_t available, std::uint64_t slot_bytes) noexcept {
  if (block == nullptr) return {};
  auto* header = reinterpret_cast<SegmentHeader*>(block);
  const std::uint64_t slots = platform::load_once(header->slots);
  if (slots == 0 || (slots & (slots - 1)) != 0 || slots > kMaxSlots || !is_slot_size(slot_bytes)) return {};
  if (segment_bytes(slots, slot_bytes) > available) return {};
  return {header, platform::load_once(header->base), slots, slot_bytes};
}

enum class RecordState : std::uint32_t {
  kFree = 0,      // of no message
  kTaken = 1,     // unacked
  kReturned = 2,  // to be delivered again
  kRejected = 3,  // dead letter; the taker, if there is one, is inspecting it
};
// The state of a record in one word, so that no process can die between two stores. The upper half is the number of
// takes, the next two bits the state, and the lower 30 bits the taker.
constexpr std::uint64_t record_word(RecordState state, Identity taker, std::uint32_t attempts) noexcept {
  return std::uint64_t{attempts} << 32 | static_cast<std::uint32_t>(state) << 30 | taker;
}
constexpr std::uint64_t kMaxCapacity = std::uint64_t{1} << 63;
constexpr std::uint32_t kMaxAttempts = 0xffffffff;  // the count saturates here
constexpr std::uint64_t kFreeRecord = record_word(RecordState::kFree, memory::kNoIdentity, 0);
// State of a record that is free but never used again: it counts a message that was discarded (Records::discarded).
constexpr std::uint64_t kDiscardedRecord = record_word(RecordState::kFree, memory::kNoIdentity, 1);
constexpr RecordState state_of_record(std::uint64_t word) noexcept {
  return static_cast<RecordState>(word >> 30 & 3);
}
constexpr Identity taker_of_record(std::uint64_t word) noexcept {
  return word & 0x3fffffffu;
}
constexpr std::uint32_t attempts_of_record(std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(word >> 32);
}
// True if the message is unacked, so that its sender may be waiting for the ack.
constexpr bool awaits_ack(RecordState state) noexcept {
  return state == RecordState::kTaken || state == RecordState::kReturned;
}
// Maximum number of receivers in a row that fail to build the object of a message, because memory is short or because
// unpickling raised SystemExit. The message is then rejected, so that receivers reach the next one.
constexpr std::uint32_t kMaxFailedBuilds = 8;
// Returns the word of a record after a nack, or after the death of its taker. `max_attempts` of 0 means no limit. A
// rejected message stays rejected.
constexpr std::uint64_t given_back(std::uint64_t word, std::uint32_t max_attempts,
                                   std::uint32_t failed_builds) noexcept {
  const std::uint32_t attempts = attempts_of_record(word);
  const bool is_used_up = (max_attempts != 0 && attempts >= max_attempts) || failed_builds >= kMaxFailedBuilds;
  const bool is_rejected = is_used_up || state_of_record(word) == RecordState::kRejected;
  return record_word(is_rejected ? RecordState::kRejected : RecordState::kReturned, memory::kNoIdentity, attempts);
}
// Returns the number of attempts, including the one that begins now.
constexpr std::uint32_t attempts_with_this(std::uint64_t word) noexcept {
  return attempts_of_record(word) == kMaxAttempts ? kMaxAttempts : attempts_of_record(word) + 1;
}

// The delivery record of an unacked message. A copy of the message's slot in the ring follows it.
struct alignas(64) Record {
  std::atomic<std::uint64_t> state;          // record_word()
  std::atomic<std::uint32_t> failed_builds;  // receivers in a row that could not build the object
  std::uint32_t unused_half;
  std::uint64_t unused[6];

  // Call this before the state is stored, as the taker or under the receivers' lock.
  void set_failed_builds(std::uint32_t count) noexcept {
    if (platform::load_relaxed(failed_builds) != count) platform::store_relaxed(failed_builds, count);
  }
  RingSlot& slot() noexcept { return *reinterpret_cast<RingSlot*>(this + 1); }
  const RingSlot& slot() const noexcept { return *reinterpret_cast<const RingSlot*>(this + 1); }
};
static_assert(sizeof(Record) == 64);
static_assert(offsetof(Record, failed_builds) == 8);
constexpr std::uint64_t kFirstRecords = 7;
constexpr std::uint64_t record_bytes(std::uint64_t slot_bytes) noexcept {
  return sizeof(Record) + slot_bytes;
}

// Decides what a blocked call does once its peers are gone.
enum class Ending : std::uint32_t {
  kRaise = 0,       // Reports killed peers once no peer is left.
  kWait = 1,        // Waits for a successor of a killed peer; the stream still ends once every peer has closed.
  kNever = 2,       // A queue: only a process that has left one end itself sees that no process has the other.
  kEach = 3,        // Reports each killed peer when it is detected, even if others are left.
  kQueueRaise = 4,  // A queue that reports killed peers once no other process can use the end.
};

// Ends that may lack processes without an end of the stream: their peers wait for new ones, after kills and exits.
enum class KeepOpen : std::uint32_t {
  kNo = 0,         // Each end sees that no process has the other end any more.
  kReceivers = 1,  // Receivers wait for new senders.
  kBoth = 2,       // Senders wait for new receivers, too.
};

// State of a queue's shutdown, which is final and applies to every process.
enum class Shutdown : std::uint32_t {
  kNot = 0,         // open
  kNoMorePuts = 1,  // queued messages are still delivered
  kDiscarded = 2,   // messages from `discarded_from` on count as done; the next process that finds one drops it
};

constexpr std::uint32_t kMaxKilled = 16;
constexpr memory::DeathWord kUnknownPid = -1;  // stands for a forked child that was killed before it stored its pid
// Members of an end that were killed or failed, and not yet reported; 0 is a free word. The process that detects a
// death, or fails, changes a 0 to its word. The process that reports it changes the word to 0, so each death is
// reported once. If there is no free word, the last one becomes memory::kOthers.
struct alignas(64) KilledList {
  std::atomic<memory::DeathWord> words[kMaxKilled];
};
static_assert(sizeof(KilledList) == 64);

// State of one end of a channel, sending or receiving.
struct EndState {
  ParticipantSet members;  // Processes that own this end.
  ParticipantSet users;    // Members that have used it.
  ParticipantSet given;    // Members that received it as an argument or in a message, and may not have used it yet.
  ParticipantSet passive;  // Not members, but own the end: they become members when they use it.
  KilledList killed;       // Members that were killed or failed, and not reported; 0: a free word.
  // Only an end that has begun can be left. The members of a new end may become passive before any of them uses it.
  alignas(64) std::atomic<std::uint32_t> begun;  // 1, for good, once a member has used, passed on or left the end.
  std::atomic<std::uint32_t> seats;              // Number of times that a member was added.
};
static_assert(sizeof(EndState) == 640);

// Header of the block of a tap's notes, which follow it.
struct alignas(64) TapHeader {
  Identity owner;            // Participant that pins the blocks of the notes.
  std::uint32_t count;       // Number of notes, a power of two; ticket t has note t mod count.
  std::uint64_t max_bytes;   // Maximum bytes of the blocks that the tap keeps pinned.
  std::uint32_t times_only;  // 1: notes contain no frames, but also the times of receipts.
  // Written by the tap.
  alignas(64) std::atomic<std::uint64_t> read;  // The tap has finished with all tickets below.
  std::atomic<std::uint64_t> bytes_out;         // Value of `bytes_in` in the last note that the tap has finished with.
  // Written by senders, under senders_lock.
  alignas(64) std::atomic<std::uint64_t> bytes_in;
};
static_assert(sizeof(TapHeader) == 192);

// The note that a put leaves for a tap. It is valid while its message's ticket is in [read, tail).
struct TapNote {
  std::atomic<std::uint64_t> ticket;  // the ticket plus one; 0: none
  std::atomic<std::int64_t> put_ns;   // monotonic clock
  std::atomic<std::uint64_t> bytes;   // value of `bytes_in` that includes this message
  std::atomic<std::uint64_t> block;   // packed; the tap clears its own holder bit of this block. 0: the frame follows
  std::atomic<std::uint64_t> frame_bytes;

  // Only for a tap that wants times.
  std::atomic<std::int32_t> put_pid;     // sender
  std::atomic<std::int32_t> put_thread;  // its thread
  std::atomic<std::int64_t> got_ns;  // written by receivers, under receivers_lock; valid once `head` is past the ticket
  std::atomic<std::int32_t> got_pid;     // receiver
  std::atomic<std::int32_t> got_thread;  // its thread

  std::byte* inline_data() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
  const std::byte* inline_data() const noexcept { return reinterpret_cast<const std::byte*>(this + 1); }
};
static_assert(sizeof(TapNote) == 64);
constexpr std::uint64_t kMinTapNotes = 8;
constexpr std::uint64_t max_tap_notes(bool times_only) noexcept {
  return times_only ? 16384 : 1024;
}
constexpr std::uint64_t tap_note_bytes(std::uint64_t slot_bytes, bool times_only) noexcept {
  return sizeof(TapNote) + (times_only ? 0 : inline_bytes(slot_bytes));
}

// Values of `portable`. The messages of a portable channel contain no references that are valid on this machine only.
// With kPortableByNow, that is true for messages put from now on. Earlier ones may contain such references.
constexpr std::uint32_t kNotPortable = 0, kAlwaysPortable = 1, kPortableByNow = 2;

struct ChannelHeader {
  std::uint64_t magic;                        // "smtchann"
  std::uint32_t version;                      // kChannelVersion
  std::uint32_t ending;                       // Ending
  std::uint64_t capacity;                     // in messages; 0: no limit
  std::uint64_t max_bytes;                    // of queued messages; 0: no limit
  std::uint32_t allow_pickle;                 // 1: messages may contain pickles
  std::atomic<std::uint32_t> shutdown;        // Shutdown; 1 is written under senders_lock, 2 under receivers_lock
  std::atomic<std::uint64_t> discarded_from;  // `head` at the time of an immediate shutdown
  PerEnd<std::atomic<Identity>> reserved;     // the only participant that may use the end now; 0: all may
  std::uint64_t slot_bytes;                   // of every slot of the channel

  // Written by senders, under senders_lock.
  alignas(64) std::atomic<std::uint32_t> senders_lock;  // a lock word
  std::atomic<std::uint64_t> tail_segment;              // Derived: last segment of the chain.
  std::atomic<std::uint64_t> cached_head;               // Derived: at most `head`.
  std::atomic<std::uint64_t> bytes_in;                  // Derived: bytes_in - bytes_out is in the ring or returned.
  std::atomic<std::uint64_t> limit;        // Derived: capacity, or less while there is no memory for a longer ring.
  std::atomic<std::uint32_t> also_queued;  // Derived: `returned` or more, written by receivers.
  std::uint32_t unused;
  std::atomic<std::uint64_t> tap;  // primary: packed BlockRef of the tap's notes, 0: no tap

  // Also written by senders, under senders_lock. Waiting receivers poll it, so no other word that senders or receivers
  // write is in its pair of cache lines.
  alignas(128) std::atomic<std::uint64_t> tail;  // Primary: ticket of the next message to send. Tickets never wrap.

  // Written by receivers, under receivers_lock.
  alignas(128) std::atomic<std::uint32_t> receivers_lock;  // a lock word
  std::atomic<std::uint32_t> timed;         // 1: receipts store their times in the notes that `tap` names
  std::atomic<std::uint64_t> head;          // primary: ticket of the next message to receive
  std::atomic<std::uint64_t> head_segment;  // primary: first segment of the chain
  std::atomic<std::uint64_t> cached_tail;   // derived: at most `tail`
  std::atomic<std::uint64_t> bytes_out;     // derived: see bytes_in
  std::atomic<std::uint64_t> records;       // primary: first block of the chain of records, 0 before the first take
  std::atomic<std::uint32_t> taken;         // derived: number of records taken or returned
  std::atomic<std::uint32_t> returned;      // derived: number of records returned
  std::atomic<std::uint32_t> rejected;      // derived: number of records rejected

  Event items;        // there is a message to receive
  Event space;        // a message was received: there is space for one more
  Event freed_bytes;  // bytes were freed. All waiting senders wake, since sizes differ. Senders that lack arena memory
                      // sleep at the arena's `space`, and set the flag of this event as well
  Event acked;        // a message was acked

  alignas(64) std::atomic<std::uint64_t> tasks_done;  // number of messages reported as done
  std::uint64_t max_unacked;                          // Maximum number of unacked messages; 0: no limit.
  std::uint32_t max_attempts;                         // Takes of a message before it is rejected; 0: no limit.
  std::uint32_t keep_open;                            // KeepOpen
  std::uint32_t drop_oldest;                          // If 1, a put that finds no space drops the oldest messages.
  std::uint32_t portable;                             // kNotPortable, kAlwaysPortable or kPortableByNow.
  std::atomic<std::uint64_t> dropped;                 // Number of dropped messages, under receivers_lock.

  alignas(64) PerEnd<std::atomic<std::uint32_t>> watched;  // 1 once a bit of `watchers` or `awaiting` was set
  std::atomic<std::uint32_t> pending_wakes;  // senders that have put messages and not yet sent the wake-up bytes
  PerEnd<ParticipantSet> watchers;  // want a byte for each message (receiving end) or each receipt (sending end)

  PerEnd<EndState> ends;            // sending, receiving
  PerEnd<ParticipantSet> awaiting;  // wait for a wake text at their hub; its sender clears the bit

  // The count of counted puts, under senders_lock (RingTail::count_puts).
  alignas(64) std::atomic<std::uint64_t> counted;  // primary, unless a counted put is in progress
  std::atomic<std::uint64_t> counted_then;         // value of `counted` once `tail` is stored
  std::atomic<std::uint64_t> counting_tail;        // value of `tail` that commits the put in progress; 0: none

  // Time that calls slept: at the sending end for space, at the receiving end for messages.
  PerEnd<memory::SleepTime> slept;

  // If `predecessor` dies, its unacked messages go to `successor` instead of back to the channel.
  alignas(64) std::atomic<Identity> predecessor;  // kNoIdentity: none
  std::atomic<Identity> successor;                // the successor, if it lives
  std::atomic<std::int64_t> asked_ns;  // monotonic clock: last time that a process reported to have found no message

  // Written once, before any other process can open the channel.
  std::int64_t made_ns;  // monotonic clock
  Identity maker;  // creator of a pipe, attached to both ends as long as it owns them; kNoIdentity for other channels
  std::atomic<std::uint32_t> named;  // 1: other processes may open it at any time, by a name or the text of a handle
  std::uint32_t requests;            // 1: a Service's channel, into which only its clients put
};
static_assert(sizeof(ChannelHeader) <= memory::kPageBytes);
static_assert(offsetof(ChannelHeader, reserved) == 48 && offsetof(ChannelHeader, portable) == 604);
static_assert(offsetof(ChannelHeader, tap) == 112 && offsetof(ChannelHeader, timed) == 260);
static_assert(offsetof(ChannelHeader, senders_lock) == 64 && offsetof(ChannelHeader, receivers_lock) == 256);

}  // namespace shmtree::channel
