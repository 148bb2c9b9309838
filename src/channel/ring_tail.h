// The end of the ring that messages are put at: room, slots, segments that follow.
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
#pragma once

#include <span>

#include "channel/chains.h"
#include "channel/message.h"

namespace shmtree::channel {

constexpr std::size_t kMostAtOnce = 64;  // messages put, or looked at, under one lock

class RingTail {
 public:
  explicit RingTail(const Control& control) noexcept : control_(control) {}

  //   kYes           there is room, as far as `limit` lets it be seen (kRelieved: once that is raised again)
  //   kFull          no place       kFullOfBytes   over max_bytes       kNeedsSegment  no slot
  //   kFullOfMemory  more would take from the arena what others need
  enum class Room { kYes, kRelieved, kFull, kFullOfBytes, kFullOfMemory, kNeedsSegment, kDamaged, kShutDown };
  // What is looked at. Without the lock the last segment is only by those who need it: it may become another block
  // meanwhile.
  enum class Look { kLocked, kAtCounts, kAtSlots };
  // Whether a message of `bytes`, of which `unallocated` have no block yet, can be stored at `tail` now. Without the
  // lock it is true for some instant of the call. `ring` is given the last segment.
  Room room_for(std::uint64_t bytes, std::uint64_t unallocated, Look look, Segment* ring = nullptr) noexcept;
  bool has_room() noexcept {
    const Room room = room_for(1, 0, Look::kAtCounts);  // no message is smaller
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
  bool has_memory_for_ring(std::uint64_t slots) const noexcept;
  bool may_grow(const Segment& last, std::uint64_t queued) noexcept;
  void link(const Segment& last, OwnedBlock segment, std::uint64_t tail) noexcept;
  std::size_t write(const Segment& segment, std::span<Outgoing> messages, Identity me, bool watched) noexcept;
  Segment last_segment() noexcept {
    return known_last_.at(control_, platform::load_relaxed(control_.shared.tail_segment));
  }

  const Control control_;
  KnownSegment known_last_;  // under the senders' lock
};

}  // namespace shmtree::channel
