// A channel in shared memory: one control block, a chain of ring segments, and a chain of delivery records.
//
// What is true, and the order of stores that keeps it so:
//   put    slot written, then `tail`; the message is in the channel from that store on
//          one that is counted: slot, `counted_then`, `counting_tail`, `tail`, `counted`, `counting_tail` := 0
//          into a channel with a tap: slot, the tap's note of it (tap_notes.h), `tail`
//          out of one whose tap wants times: the note's times, `head`
//   grow   successor block complete, then the last segment's `next`
//   get    holder bit of the message's block, then `head`
//   take   record written (its state last), then `head`; a record whose ticket is not below `head` does not count
//   ack    record state -> free.  nack, or the taker's death: record state -> returned, or rejected after so many takes
//   task   `tasks_done`: how many of the messages below `tail` were reported as done; the others are unfinished, unless
//          an immediate shutdown discarded them (tasks.h)
//   close  `shutdown`, then for an immediate one `discarded_from` and `shutdown` again: puts and gets look at it under
//          their locks
// The window is the tickets [head, tail); returned records come before it. Everything else here is derived: cached
// indices, byte counts, the tail segment. `senders_lock` guards what senders write and `receivers_lock` what receivers
// write; each side reads the other's index without its lock.
//
// A message is put only while tail - head + `also_queued` is below the limit. `cached_head` is never more than head,
// and `also_queued` never less than the number of returned records, so what senders see of either is room.
#pragma once

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
// What a transfer of that end hands over.
constexpr memory::Transferred transferred(End end) noexcept {
  return end == End::kSending ? memory::Transferred::kSendingEnd : memory::Transferred::kReceivingEnd;
}
// One of the two that a channel has of it.
template <class T>
struct PerEnd {
  T of[2];
  T& operator[](End end) noexcept { return of[static_cast<std::uint32_t>(end)]; }
  const T& operator[](End end) const noexcept { return of[static_cast<std::uint32_t>(end)]; }
  T* begin() noexcept { return of; }
  T* end() noexcept { return of + 2; }
};

constexpr std::uint64_t kChannelMagic = 0x6e6e616863746d73;  // "smtchann"
constexpr std::uint32_t kChannelVersion = 13;

// A message's place in the ring. `block` is a packed BlockRef, or 0 for a frame that is inline: then it follows.
struct RingSlot {
  std::uint64_t ticket;
  std::uint64_t block;
  std::uint64_t bytes;  // of the frame
  Identity sender;
  std::uint32_t unused;

  std::byte* inline_data() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
  const std::byte* inline_data() const noexcept { return reinterpret_cast<const std::byte*>(this + 1); }
};
static_assert(sizeof(RingSlot) == 32);

// Slots are of two sizes. In the wide ones a message of 1 KB needs no block, which halves its cost; deep channels have
// narrow ones, since a slot is taken whole by the smallest message.
constexpr std::uint64_t kNarrowSlotBytes = 512, kWideSlotBytes = 1280;
constexpr std::uint64_t kMostWideSlots = 1024;
constexpr std::uint64_t slot_bytes_for(std::uint64_t capacity) noexcept {
  return capacity != 0 && capacity <= kMostWideSlots ? kWideSlotBytes : kNarrowSlotBytes;
}
constexpr bool is_slot_size(std::uint64_t bytes) noexcept {
  return bytes == kNarrowSlotBytes || bytes == kWideSlotBytes;
}
constexpr std::uint64_t inline_bytes(std::uint64_t slot_bytes) noexcept {
  return slot_bytes - sizeof(RingSlot);
}
constexpr std::uint64_t kMostInlineBytes = inline_bytes(kWideSlotBytes);

// Slots follow the header; ticket t lies in slot (t - base) % slots. The segment's tickets end where its successor's
// begin.
struct alignas(64) SegmentHeader {
  std::uint64_t base;
  std::uint64_t slots;              // a power of two
  std::atomic<std::uint64_t> next;  // packed BlockRef of the successor, 0 when there is none
  std::uint64_t unused[5];
};
static_assert(sizeof(SegmentHeader) == 64);
constexpr std::uint64_t kFirstSlots = 8;
constexpr std::uint64_t kMostSlots = 16384;
constexpr std::uint64_t segment_bytes(std::uint64_t slots, std::uint64_t slot_bytes) noexcept {
  return sizeof(SegmentHeader) + slots * slot_bytes;
}

// A segment with its size as it was checked. It lies in memory that everyone can write: the words of its header are not
// read again.
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

// The segment in a block of `room` bytes; none when there cannot be one.
inline Segment checked_segment(std::byte* block, std::uint64_t room, std::uint64_t slot_bytes) noexcept {
  if (block == nullptr) return {};
  auto* header = reinterpret_cast<SegmentHeader*>(block);
  const std::uint64_t slots = platform::load_once(header->slots);
  if (slots == 0 || (slots & (slots - 1)) != 0 || slots > kMostSlots || !is_slot_size(slot_bytes)) return {};
  if (segment_bytes(slots, slot_bytes) > room) return {};
  return {header, platform::load_once(header->base), slots, slot_bytes};
}

enum class RecordState : std::uint32_t {
  kFree = 0,
  kTaken = 1,
  kReturned = 2,
  kRejected = 3,  // given up; the taker, if there is one, is who looks at it
};
// How often the message was taken in the upper half, the state in the next two bits, the taker in the lower 30: one
// word, so that no kill comes between them.
constexpr std::uint64_t record_word(RecordState state, Identity taker, std::uint32_t attempts) noexcept {
  return std::uint64_t{attempts} << 32 | static_cast<std::uint32_t>(state) << 30 | taker;
}
constexpr std::uint64_t kMostCapacity = std::uint64_t{1} << 63;
constexpr std::uint32_t kMostAttempts = 0xffffffff;  // no more are counted
constexpr std::uint64_t kFreeRecord = record_word(RecordState::kFree, memory::kNobody, 0);
// Free, and not used again: its message was discarded, and is counted by this (Records::discarded).
constexpr std::uint64_t kDiscardedRecord = record_word(RecordState::kFree, memory::kNobody, 1);
constexpr RecordState state_of_record(std::uint64_t word) noexcept {
  return static_cast<RecordState>(word >> 30 & 3);
}
constexpr Identity taker_of_record(std::uint64_t word) noexcept {
  return word & 0x3fffffffu;
}
constexpr std::uint32_t attempts_of_record(std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(word >> 32);
}
// Whether its sender waits for it.
constexpr bool awaits_ack(RecordState state) noexcept {
  return state == RecordState::kTaken || state == RecordState::kReturned;
}
// Maximum number of receivers in a row that fail to build the object of a message: for want of memory, or because
// unpickling raised SystemExit. After that the message is given up, so that receivers reach the next one.
constexpr std::uint32_t kMaxFailedBuilds = 8;
// Returns the word of a record whose message was nacked, or whose taker died. `max_attempts` of 0 is no limit; a
// rejected message stays rejected.
constexpr std::uint64_t given_back(std::uint64_t word, std::uint32_t max_attempts,
                                   std::uint32_t failed_builds) noexcept {
  const std::uint32_t attempts = attempts_of_record(word);
  const bool is_used_up = (max_attempts != 0 && attempts >= max_attempts) || failed_builds >= kMaxFailedBuilds;
  const bool is_rejected = is_used_up || state_of_record(word) == RecordState::kRejected;
  return record_word(is_rejected ? RecordState::kRejected : RecordState::kReturned, memory::kNobody, attempts);
}
// With the attempt that now begins.
constexpr std::uint32_t attempts_with_this(std::uint64_t word) noexcept {
  return attempts_of_record(word) == kMostAttempts ? kMostAttempts : attempts_of_record(word) + 1;
}

// A message taken and not acknowledged; its slot follows, as it was in the ring.
struct alignas(64) Record {
  std::atomic<std::uint64_t> state;          // record_word()
  std::atomic<std::uint32_t> failed_builds;  // receivers in a row that had no memory to build the object
  std::uint32_t unused_half;
  std::uint64_t unused[6];

  // Call it before storing the state, as the taker or with the receivers' lock held.
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

// What happens at the end of a stream.
enum class Ending : std::uint32_t {
  kRaise = 0,  // a killed peer is reported
  kWait = 1,   // it is waited for; a stream that everyone closed has ended all the same
  kNever = 2,  // a queue: only a process that has left an end itself is told that no process has it
  kEach = 3,   // each killed peer is reported when it is found, also while others are left
};

// A queue that was shut down, for everyone and for good.
enum class Shutdown : std::uint32_t {
  kNot = 0,
  kNoMorePuts = 1,  // what is queued is still delivered
  kDiscarded = 2,   // nothing is: messages from `discarded_from` on count as done, and are dropped by whoever looks
};

constexpr std::uint32_t kMostKilled = 16;
constexpr std::int32_t kUnknownPid = -1;
// Members of an end that were killed since the last end of the stream; 0 is a free word. The process that detects a
// death changes a 0 to the pid, and the process that reports it changes the pid to 0, so each death is reported once.
struct alignas(64) KilledList {
  std::atomic<std::int32_t> pids[kMostKilled];
};
static_assert(sizeof(KilledList) == 64);

// One end of a channel, of which there are two: sending and receiving.
struct EndState {
  ParticipantSet members;  // have this end
  ParticipantSet users;    // and have used it
  ParticipantSet given;    // and were given it, as an argument or in a message: they may not have begun to use it
  ParticipantSet passive;  // are no members, and have it: they may use it, and are members then
  KilledList killed;
  alignas(64) std::atomic<std::uint32_t> begun;  // somebody took part since the last end of the stream
  std::atomic<std::uint32_t> seats;              // number of times that a member was added
};
static_assert(sizeof(EndState) == 640);

// Begins the block of a tap's notes, which follow it.
struct alignas(64) TapHeader {
  Identity owner;            // whose holder bit the notes' blocks have
  std::uint32_t count;       // of notes: a power of two; the note of ticket t is number t mod count
  std::uint64_t most_bytes;  // that blocks may have for which the tap alone is a reason to stay
  std::uint32_t times_only;  // 1: notes have no frames, and times of receipts, too
  // By the tap.
  alignas(64) std::atomic<std::uint64_t> read;  // it is done with the tickets below
  std::atomic<std::uint64_t> bytes_out;         // `bytes_in` as of the last note that it was done with
  // By senders, under senders_lock.
  alignas(64) std::atomic<std::uint64_t> bytes_in;
};
static_assert(sizeof(TapHeader) == 192);

// What a put leaves for a tap. It counts while its ticket is neither under `read` nor, less one, at `tail` or past it.
struct TapNote {
  std::atomic<std::uint64_t> ticket;  // and one; 0: none
  std::atomic<std::int64_t> put_ns;   // monotonic clock
  std::atomic<std::uint64_t> bytes;   // `bytes_in` with it
  std::atomic<std::uint64_t> block;   // packed; the tap's bit of it is the tap's to clear. 0: the frame follows
  std::atomic<std::uint64_t> frame_bytes;
  // Of a tap that wants times.
  std::atomic<std::int32_t> put_pid;
  std::atomic<std::int32_t> put_thread;
  std::atomic<std::int64_t> got_ns;  // by receivers, under receivers_lock; it counts once `head` is past the ticket
  std::atomic<std::int32_t> got_pid;
  std::atomic<std::int32_t> got_thread;

  std::byte* inline_data() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
  const std::byte* inline_data() const noexcept { return reinterpret_cast<const std::byte*>(this + 1); }
};
static_assert(sizeof(TapNote) == 64);
constexpr std::uint64_t kFewestTapNotes = 8;
constexpr std::uint64_t most_tap_notes(bool times_only) noexcept {
  return times_only ? 16384 : 1024;
}
constexpr std::uint64_t tap_note_bytes(std::uint64_t slot_bytes, bool times_only) noexcept {
  return sizeof(TapNote) + (times_only ? 0 : inline_bytes(slot_bytes));
}

// Whether messages may have what means something on this machine only.
constexpr std::uint32_t kNotPortable = 0, kAlwaysPortable = 1, kPortableByNow = 2;

struct ChannelHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t ending;     // Ending
  std::uint64_t capacity;   // messages, 0: no limit
  std::uint64_t max_bytes;  // queued, 0: no limit
  std::uint32_t allow_pickle;
  std::atomic<std::uint32_t> shutdown;  // Shutdown; 1 is written under senders_lock, 2 under receivers_lock
  std::atomic<std::uint64_t> discarded_from;
  PerEnd<std::atomic<Identity>> reserved;  // the one participant that may use it now, 0 for all
  std::uint64_t slot_bytes;                // of every slot of the channel

  // Senders, under senders_lock.
  alignas(64) std::atomic<std::uint32_t> senders_lock;
  std::atomic<std::uint64_t> tail;          // truth
  std::atomic<std::uint64_t> tail_segment;  // derived: the last of the chain
  std::atomic<std::uint64_t> cached_head;   // derived: no more than head
  std::atomic<std::uint64_t> bytes_in;      // derived, as bytes_in - bytes_out: of the ring and what was returned
  std::atomic<std::uint64_t> limit;         // derived: capacity, or fewer while there is no memory for a longer ring
  std::atomic<std::uint32_t> also_queued;   // derived, and written by receivers: `returned`, where senders look
  std::uint32_t unused;
  std::atomic<std::uint64_t> tap;  // truth: packed BlockRef of the notes that puts leave for who looks on, 0: nobody

  // Receivers, under receivers_lock.
  alignas(64) std::atomic<std::uint32_t> receivers_lock;
  std::atomic<std::uint32_t> timed;         // 1: receipts leave their times in the notes that `tap` names
  std::atomic<std::uint64_t> head;          // truth
  std::atomic<std::uint64_t> head_segment;  // truth: the first of the chain
  std::atomic<std::uint64_t> cached_tail;   // derived: no more than tail
  std::atomic<std::uint64_t> bytes_out;
  std::atomic<std::uint64_t> records;  // truth: the first of the chain of records, 0 before the first take
  std::atomic<std::uint32_t> taken;    // derived: number of records taken or returned
  std::atomic<std::uint32_t> returned;
  std::atomic<std::uint32_t> rejected;

  Event items;        // something to receive
  Event space;        // something was received: there is room for one more message
  Event freed_bytes;  // the same, for those whom bytes keep waiting: all of them look, since sizes differ. Those who
                      // wait for the arena's memory sleep at the arena's `space`, and set the flag of this one, too
  Event acked;        // something was acknowledged

  alignas(64) std::atomic<std::uint64_t> tasks_done;
  std::uint64_t max_unsettled;         // messages taken, 0: no limit
  std::uint32_t max_attempts;          // to have a message taken and acknowledged, 0: no limit
  std::uint32_t keep_open;             // 1: the stream does not end where no senders are left
  std::uint32_t drop_oldest;           // 1: a put that finds no room receives the oldest messages, for nobody
  std::uint32_t portable;              // 1: nothing in a message means something on this machine only; 2: from now on
  std::atomic<std::uint64_t> dropped;  // how many those were, under receivers_lock

  alignas(64) PerEnd<std::atomic<std::uint32_t>> watched;  // some bit of its `watchers`, or `awaiting`, was set
  std::atomic<std::uint32_t> wakes_on_their_way;  // senders that have stored `tail` and not yet sent their bytes
  PerEnd<ParticipantSet> watchers;                // of messages want a datagram for each; of room, for each receipt

  PerEnd<EndState> ends;
  PerEnd<ParticipantSet> awaiting;  // want one datagram at their hub, when there is something to do; taken by who sends

  // Of who counts its puts, under senders_lock (ring.h).
  alignas(64) std::atomic<std::uint64_t> counted;  // truth, but for a put that is under way
  std::atomic<std::uint64_t> counted_then;         // what it is from the store of `tail` on
  std::atomic<std::uint64_t> counting_tail;        // what `tail` is then; 0: no such put is under way

  // Of those who slept in a call: at the sending end for room, at the receiving end for messages.
  PerEnd<memory::SleepTime> slept;

  // What `leaver` has taken, and not settled when it dies, is the heir's then, and does not go back to the channel.
  alignas(64) std::atomic<Identity> leaver;
  std::atomic<Identity> heir;
  std::atomic<std::int64_t> asked_ns;  // monotonic clock: when somebody last said that it found no message

  // Written once, before anybody else has the channel.
  std::int64_t made_ns;              // monotonic clock
  Identity maker;                    // of a pipe: it takes part in both ends as long as it has them; else nobody
  std::atomic<std::uint32_t> named;  // 1: other processes may open it at any time, by a name or the text of a handle
};
static_assert(sizeof(ChannelHeader) <= memory::kPageBytes);
static_assert(offsetof(ChannelHeader, reserved) == 48 && offsetof(ChannelHeader, portable) == 476);
static_assert(offsetof(ChannelHeader, tap) == 120 && offsetof(ChannelHeader, timed) == 132);
static_assert(offsetof(ChannelHeader, senders_lock) == 64 && offsetof(ChannelHeader, receivers_lock) == 128);

}  // namespace shmtree::channel
