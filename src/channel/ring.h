// The ring: a chain of segments of slots, with an end that messages are put at and one that they are received at.
#pragma once

#include <iterator>
#include <span>

#include "channel/tap_notes.h"

namespace shmtree::channel {

constexpr std::size_t kMostAtOnce = 64;  // messages put, or looked at, under one lock

// Where messages are put: room, slots, segments that follow.
//
// Order of stores: a message's slot, then `tail`; a successor's block complete, then the last segment's `next`. The
// message, or the segment, is there from that store on.
//
// Invariants:
//   - A message is put only while tail - head + `also_queued` is below `limit`, and no slot is written that a receiver
//     may read: `cached_head` is never more than head.
//   - The ring stops growing while the arena has memory for one segment more. Slots come and go by whole segments, so a
//     ring that has used up the arena would give no room again until its first segment is received. It stops at as many
//     messages as there are then (`limit`), and has memory left to put one more for each that is received.
//
// Thread safety: any thread; what says so, under the senders' lock.
class RingTail {
 public:
  explicit RingTail(const Control& control) noexcept : control_(control) {}

  //   kYes           there is room, as far as `limit` lets it be seen (kRelieved: once that is raised again)
  //   kFull          no place       kFullOfBytes   over max_bytes       kNeedsSegment  no slot
  //   kFullOfMemory  more would take from the arena what others need
  enum class Room { kYes, kRelieved, kFull, kFullOfBytes, kFullOfMemory, kNeedsSegment, kDamaged, kShutDown };
  // How far a look goes. Without the lock only those who need to look at the last segment, which may become another
  // block meanwhile.
  enum class Look { kLocked, kAtCounts, kAtSlots };
  // Whether a message whose frame has `bytes`, of which `unallocated` have no block yet, and that refers to others of
  // `referred_bytes`, can be stored at `tail` now. Without the lock it is true for some instant of the call. `ring` is
  // given the last segment.
  Room room_for(std::uint64_t bytes, std::uint64_t referred_bytes, std::uint64_t unallocated, Look look,
                Segment* ring = nullptr) noexcept;
  // From now on the puts of this process are counted, each with the store that publishes it. Recovery finishes the
  // count of one that a kill ended, before anybody else can put: so it says of any put whether it took place.
  void count_puts() noexcept { counts_.store(true, std::memory_order_relaxed); }
  // How many were. Without the lock.
  static std::uint64_t counted(const ChannelHeader& shared) noexcept;
  // Under the lock: the put that is under way, if there is one, took place or did not.
  static void finish_count(ChannelHeader& shared) noexcept;
  bool has_room() noexcept {
    const Room room = room_for(1, 0, 0, Look::kAtCounts);  // no message is smaller
    return room == Room::kYes || room == Room::kRelieved;
  }

  struct Put {
    Room room;  // kYes: they were put
    std::size_t count = 0;
    std::uint64_t first = 0;    // ticket
    std::uint64_t grow_to = 0;  // put() wants a segment of so many slots
    bool watched = false;       // somebody wants a byte for each
    bool room_left = false;
  };
  // Under the senders' lock: puts the first few of `messages` that there is room for, with one store of `tail`; `spare`
  // becomes the next segment when there is no slot.
  Put put(std::span<Outgoing> messages, Identity me, OwnedBlock& spare) noexcept;
  // A segment of `slots` slots, or of fewer when there is no memory for that many. Does not wait for any: the messages
  // that are in the ring already may be what holds it. Without the lock: the arena's is never taken under it.
  Result<OwnedBlock> new_segment(std::uint64_t slots, const WaitContext& wait) const;
  // Why there is no last segment to write to.
  Error no_ring() const;

 private:
  bool leaves_memory(std::uint64_t queued_bytes, std::uint64_t unallocated) const noexcept;
  bool has_memory_for_ring(std::uint64_t slots) const noexcept;
  bool may_grow(const Segment& last, std::uint64_t queued) noexcept;
  void link(const Segment& last, OwnedBlock segment, std::uint64_t tail) noexcept;
  std::size_t write(const Segment& segment, std::span<Outgoing> messages, Identity me, bool watched) noexcept;
  Segment last_segment() noexcept {
    return known_last_.at(control_, platform::load_relaxed(control_.shared.tail_segment));
  }

  const Control control_;
  KnownSegment known_last_;  // under the senders' lock
  std::atomic<bool> counts_{false};
};

// What a look under the receivers' lock leaves to do without it, and why it found nothing that this process can have.
struct Receipt {
  std::uint64_t spent[4];  // segments, packed; the first `spent_count` are set
  std::size_t spent_count = 0;
  bool damaged = false;
  bool starved = false;      // the next message was left: this process has no memory, or addresses, for it
  std::uint64_t ticket = 0;  // of that message
  std::uint64_t wanted = 0;  // bytes that there are no addresses for; 0: memory was missing

  bool is_left() const noexcept { return damaged || starved; }
  bool starve(std::uint64_t of, std::uint64_t bytes) noexcept {
    starved = true;
    ticket = of;
    wanted = bytes;
    return false;
  }
  // After unlocking: gives back the segments that were used up.
  void release_spent(Arena& arena) const noexcept {
    for (std::size_t i = 0; i < spent_count; ++i) arena.reclaimer().collect(memory::unpack(spent[i]));
  }
  // Why the first message was not received, though there is one.
  Error error(const memory::Arena& arena) const;
};

// Where they are received.
//
// Order of stores: the holder bit of a message's block, then `head`. Until then the message is in the window, and from
// then on its slot may be written again.
//
// Thread safety: any thread; what says so, under the receivers' lock.
class RingHead {
 public:
  RingHead(const Control& control, std::shared_ptr<Arena> arena) noexcept
      : control_(control), arena_(std::move(arena)) {}

  // Whether there is a message in the ring, or one that was returned, and how many there are.
  bool has_messages() const noexcept {
    const ChannelHeader& shared = control_.shared;
    return platform::load_seq_cst(shared.tail) != platform::load_seq_cst(shared.head) ||
           platform::load_seq_cst(shared.returned) != 0;
  }
  std::uint64_t size() const noexcept;

  // Under the receivers' lock.
  // The first message of the ring; false when there is none, or none that this process can have.
  bool receive(Incoming& out, Identity me, Receipt& receipt) noexcept;
  // Its parts. The slot at `head`, or null when the ring is empty or damaged. Moves to the next segment when the first
  // is used up; the one left behind is released after unlocking.
  const RingSlot* first(Receipt& receipt) noexcept;
  // Copies what the slot says into `out` and, for a block, sets the holder bit. Nothing has moved yet. False when this
  // process cannot hold the block, or map it and all that it refers to: another may.
  bool hold(const RingSlot& slot, Identity me, std::uint32_t attempts, Incoming& out, Receipt& receipt) noexcept;
  // The same for the message of a record: a receiver had it before.
  bool hold_again(const Record& record, Identity me, std::uint32_t attempts, Incoming& out, Receipt& receipt) noexcept {
    out.came_back_ = hold(record.slot(), me, attempts, out, receipt);
    out.failed_before_ = platform::load_relaxed(record.failed_builds);
    return out.came_back_;
  }
  // The first message, which counts with `bytes`, was received.
  void advance(std::uint64_t bytes) noexcept {
    ChannelHeader& shared = control_.shared;
    platform::store_relaxed(shared.bytes_out, platform::load_relaxed(shared.bytes_out) + bytes);
    if (platform::load_relaxed(shared.timed) != 0) [[unlikely]]
      note_receipt();
    platform::store_release(shared.head, platform::load_relaxed(shared.head) + 1);  // the slot may be written again
  }

 private:
  void fetch_next(std::uint64_t bytes) const noexcept;
  void note_receipt() const noexcept;

  const Control control_;
  const std::shared_ptr<Arena> arena_;  // as messages that are held keep it
  KnownSegment known_first_;            // under the receivers' lock
};

}  // namespace shmtree::channel
