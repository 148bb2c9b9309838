#include "channel/ring_tail.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

namespace shmtree::channel {

using namespace platform;

namespace {

void write_slot(RingSlot& slot, std::uint64_t ticket, const Outgoing& message, Identity me) noexcept {
  slot.ticket = ticket;
  slot.bytes = message.size();
  slot.sender = me;
  slot.block = message.block.valid() ? memory::pack(message.block.ref()) : 0;
  const auto& frame = message.inline_frame;
  if (slot.block == 0 && !frame.empty()) std::memcpy(slot.inline_data(), frame.data(), frame.size());
}

}  // namespace

RingTail::Room RingTail::room_for(std::uint64_t bytes, std::uint64_t unallocated, Look look, Segment* ring) noexcept {
  ChannelHeader& shared = control_.shared;
  if (control_.is_shut_down()) return Room::kShutDown;
  if (control_.is_reserved(End::kSending)) return Room::kFull;
  const std::uint64_t tail = load_acquire(shared.tail);
  const bool locked = look == Look::kLocked;
  Segment last;
  if (look != Look::kAtCounts) {
    const std::uint64_t packed = load_acquire(shared.tail_segment);
    last = locked ? known_last_.at(control_, packed) : segment_at(control_, packed);
    if (!last) return Room::kDamaged;
    if (ring != nullptr) *ring = last;
  }
  const std::uint64_t also_queued = load_relaxed(shared.also_queued);
  std::uint64_t head = load_relaxed(shared.cached_head);
  // Without the lock `head` may have overtaken the `tail` that was read.
  const auto queued = [&] { return (tail > head ? tail - head : 0) + also_queued; };
  const std::uint64_t limit = load_relaxed(shared.limit);
  const auto over_count = [&] { return limit != 0 && queued() >= limit; };
  const auto over_slots = [&] {
    if (!last) return false;
    const std::uint64_t from = std::max(head, last.base);
    return tail > from && tail - from >= last.slots;
  };
  const bool counts_bytes = shared.max_bytes != 0 || bytes > control_.inline_bytes();
  if (!locked || over_count() || over_slots() || counts_bytes) {
    head = load_acquire(shared.head);  // receivers are done with the slots below
    if (locked) store_relaxed(shared.cached_head, head);
    if (over_count()) {
      if (limit == shared.capacity || (shared.capacity != 0 && queued() >= shared.capacity)) return Room::kFull;
      if (!last) last = segment_at(control_, load_acquire(shared.tail_segment));
      return has_memory_for_ring(last.slots) ? Room::kRelieved : Room::kFullOfMemory;
    }
  }
  if (counts_bytes && queued() != 0) {
    const std::uint64_t in = load_relaxed(shared.bytes_in), out = load_acquire(shared.bytes_out);
    const std::uint64_t total = (in > out ? in - out : 0) + bytes;
    if (shared.max_bytes != 0 && total > shared.max_bytes) return Room::kFullOfBytes;
    // One channel may not queue up what the others need: as much stays free as it has queued.
    if (bytes > control_.inline_bytes() && total + unallocated > control_.arena.pool().free_bytes()) {
      return Room::kFullOfMemory;
    }
  }
  if (!over_slots()) return Room::kYes;
  if (locked) {  // what is remembered of the segment may not be what those who wait see of it
    known_last_.forget();
    last = last_segment();
    if (!last) return Room::kDamaged;
    if (ring != nullptr) *ring = last;
  }
  return over_slots() ? Room::kNeedsSegment : Room::kYes;
}

RingTail::Put RingTail::put(std::span<Outgoing> messages, Identity me, OwnedBlock& spare) noexcept {
  ChannelHeader& shared = control_.shared;
  const std::uint64_t tail = load_relaxed(shared.tail);
  Segment last;
  Put put{.room = room_for(messages[0].size(), 0, Look::kLocked, &last), .first = tail};
  if (put.room == Room::kNeedsSegment && spare.valid()) {
    link(last, std::move(spare), tail);
    last = last_segment();
    if (!last) return Put{.room = Room::kDamaged};
  } else if (put.room != Room::kYes) {
    if (put.room == Room::kRelieved) store_relaxed(shared.limit, shared.capacity);
    if (put.room == Room::kNeedsSegment && may_grow(last, tail - load_relaxed(shared.cached_head)))
      put.grow_to = last.slots * 2;
    return put;
  }
  put.room = Room::kYes;
  put.watched = load_relaxed(shared.watched[End::kReceiving]) != 0;
  put.count = write(last, messages, me, put.watched);
  const std::uint64_t limit = load_relaxed(shared.limit);
  put.room_left = limit != 0 && tail + put.count - load_relaxed(shared.cached_head) < limit;
  return put;
}

// With room for the first: writes as many as there is room for, then `tail`.
std::size_t RingTail::write(const Segment& segment, std::span<Outgoing> messages, Identity me, bool watched) noexcept {
  ChannelHeader& shared = control_.shared;
  const std::uint64_t tail = load_relaxed(shared.tail);
  const std::uint64_t head = load_relaxed(shared.cached_head);
  std::uint64_t most = messages.size();
  if (const std::uint64_t limit = load_relaxed(shared.limit); limit != 0 && most > 1) {
    const std::uint64_t queued = tail - head + load_relaxed(shared.also_queued);
    most = std::min(most, limit - std::min(queued, limit));  // 0 if more was returned since; the first has its room
  }
  most = std::min(most, segment.slots - (tail - std::max(head, segment.base)));
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  do {
    write_slot(segment.at(tail + count), tail + count, messages[count], me);
    bytes += messages[count].size();
    ++count;
    // Room by bytes is judged as if those before were in already, which `bytes_in` says for the first only.
  } while (count < most && shared.max_bytes == 0 && !messages[count].block.valid());
  store_relaxed(shared.bytes_in, load_relaxed(shared.bytes_in) + bytes);
  if (watched) add(shared.wakes_on_their_way, 1u);
  store_release(shared.tail, tail + count);
  const std::uint64_t next = tail + count;
  if (next - std::max(head, segment.base) < segment.slots) {  // free, so that no receiver is about to read it
    const std::uint64_t frame = messages[0].block.valid() ? 0 : messages[0].size();
    prefetch_for_write(&segment.at(next), sizeof(RingSlot) + frame);
  }
  return count;
}

// What the ring grows by next, and what it goes on with when there is no more for that: as much again.
bool RingTail::has_memory_for_ring(std::uint64_t slots) const noexcept {
  const std::uint64_t bytes = segment_bytes(std::clamp(slots, kFirstSlots, kMostSlots), control_.slot_bytes);
  return control_.arena.pool().free_bytes() >= 2 * bytes;
}

// With no slot left in the last segment.
bool RingTail::may_grow(const Segment& last, std::uint64_t queued) noexcept {
  ChannelHeader& shared = control_.shared;
  if (load_relaxed(shared.limit) != shared.capacity || has_memory_for_ring(last.slots)) return true;
  store_relaxed(shared.limit, queued);
  return false;
}

// The store of `next` makes the successor part of the ring; tickets from `tail` on are its own.
void RingTail::link(const Segment& last, OwnedBlock block, std::uint64_t tail) noexcept {
  reinterpret_cast<SegmentHeader*>(block.data())->base = tail;
  const std::uint64_t packed = memory::pack(block.ref());
  store_release(last.header->next, packed);
  store_release(control_.shared.tail_segment, packed);
  block.publish();
}

Result<OwnedBlock> RingTail::new_segment(std::uint64_t slots, const WaitContext& wait) const {
  const std::uint64_t share = std::bit_floor(control_.arena.max_bytes() / 16 / control_.slot_bytes);
  slots = std::clamp(slots, kFirstSlots, std::clamp(share, kFirstSlots, kMostSlots));
  for (;; slots /= 2) {
    auto block = control_.arena.allocate(segment_bytes(slots, control_.slot_bytes), memory::BlockKind::kSegment,
                                         WaitContext{Deadline::immediate(), wait.hooks});
    if (block) {
      new (block->data()) SegmentHeader{0, slots, {0}, {}};
      return block;
    }
    const bool is_no_memory = block.code() == Code::kFull || block.code() == Code::kOutOfSharedMemory;
    if (!is_no_memory || slots == kFirstSlots) return block;
  }
}

Error RingTail::no_ring() const {
  if (!control_.arena.blocks().is_unmapped(memory::unpack(load_acquire(control_.shared.tail_segment)))) {
    return Error{Code::kCorrupt, "the channel's ring is damaged"};
  }
  return Error{Code::kOutOfSharedMemory, "no address space left to map the channel's ring"};
}

}  // namespace shmtree::channel
