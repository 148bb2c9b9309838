// ring.h describes the order of stores and the locks.
#include "channel/ring.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <string>

#include "channel/tap_notes.h"
#include "memory/held_locks.h"
#include "platform/dcheck.h"
#include "platform/memory_limits.h"

namespace shmtree::channel {

using namespace platform;

namespace {

void write_slot(RingSlot& slot, std::uint64_t ticket, const Outgoing& message, Identity me) noexcept {
  store_once(slot.ticket, ticket);  // Acks::pending() may still read the message that was here
  store_once(slot.sender, me);
  slot.bytes = message.size();
  slot.block = message.block.valid() ? memory::pack(message.block.ref()) : 0;
  const auto& frame = message.inline_frame;
  if (slot.block == 0 && !frame.empty()) std::memcpy(slot.inline_data(), frame.data(), frame.size());
}

std::uint64_t bytes_of_class(std::uint64_t packed) noexcept {
  return std::uint64_t{1} << memory::unpack(packed).id.size_class();
}

}  // namespace

RingTail::Space RingTail::space_for(std::uint64_t bytes, std::uint64_t referred_bytes, std::uint64_t unallocated,
                                    Depth depth, Segment* ring) noexcept {
  SHMTREE_DCHECK(depth != Depth::kLocked || memory::HeldLocks::contains(control_.shared.senders_lock));
  ChannelHeader& shared = control_.shared;
  if (control_.is_shut_down()) return Space::kShutDown;
  if (control_.is_reserved(End::kSending)) return Space::kFull;
  const std::uint64_t tail = load_acquire(shared.tail);
  const bool locked = depth == Depth::kLocked;
  Segment last;
  if (depth != Depth::kAtCounts) {
    const std::uint64_t packed = load_acquire(shared.tail_segment);
    last = locked ? known_last_.at(control_, packed) : segment_at(control_, packed);
    if (!last) return Space::kDamaged;
    if (ring != nullptr) *ring = last;
  }
  const std::uint64_t also_queued = load_relaxed(shared.also_queued);
  std::uint64_t head = load_relaxed(shared.cached_head);
  // Without the lock, `head` may have passed the `tail` that was read.
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
      if (limit == shared.capacity || (shared.capacity != 0 && queued() >= shared.capacity)) return Space::kFull;
      if (!last) last = segment_at(control_, load_acquire(shared.tail_segment));
      return has_memory_for_ring(last.slots) ? Space::kRelieved : Space::kFullOfMemory;
    }
  }
  if (counts_bytes && queued() != 0) {
    const std::uint64_t total = control_.queued_bytes() + bytes;
    if (shared.max_bytes != 0 && total + referred_bytes > shared.max_bytes) return Space::kFullOfBytes;
    if (bytes > control_.inline_bytes() && !leaves_memory(total, unallocated)) return Space::kFullOfMemory;
  }
  if (!over_slots()) return Space::kYes;
  if (locked) {  // the cached segment may differ from what waiting threads see
    known_last_.forget();
    last = last_segment();
    if (!last) return Space::kDamaged;
    if (ring != nullptr) *ring = last;
  }
  return over_slots() ? Space::kNeedsSegment : Space::kYes;
}

// A channel may queue only as many bytes as it leaves free, so that one channel cannot starve the others. Referenced
// bytes count with every message that refers to them, but the total never exceeds the bytes in use plus the message
// itself.
bool RingTail::leaves_memory(std::uint64_t queued_bytes, std::uint64_t unallocated) const noexcept {
  const memory::BlockPool& pool = control_.arena.pool();
  const std::uint64_t free = pool.free_bytes(), used = pool.max_bytes() - std::min(free, pool.max_bytes());
  return std::min(queued_bytes, used + unallocated) + unallocated <= free;
}

RingTail::Put RingTail::put(std::span<Outgoing> messages, Identity me, OwnedBlock& spare) noexcept {
  SHMTREE_DCHECK(!messages.empty() && messages.size() <= kMaxAtOnce);
  SHMTREE_DCHECK(memory::HeldLocks::contains(control_.shared.senders_lock) && me != memory::kNoIdentity);
  ChannelHeader& shared = control_.shared;
  const std::uint64_t tail = load_relaxed(shared.tail);
  Segment last;
  const std::uint64_t bytes = messages[0].size(), referred_bytes = messages[0].referred();
  Put put{.space = space_for(bytes, referred_bytes, 0, Depth::kLocked, &last), .first = tail};
  if (put.space == Space::kNeedsSegment && spare.valid()) {
    link(last, std::move(spare), tail);
    last = last_segment();
    if (!last) return Put{.space = Space::kDamaged};
  } else if (put.space != Space::kYes) {
    if (put.space == Space::kRelieved) store_relaxed(shared.limit, shared.capacity);
    if (put.space == Space::kNeedsSegment && may_grow(last, tail - load_relaxed(shared.cached_head)))
      put.grow_to = last.slots * 2;
    return put;
  }
  put.space = Space::kYes;
  put.watched = load_relaxed(shared.watched[End::kReceiving]) != 0;
  put.count = write(last, messages, me, put.watched);
  const std::uint64_t limit = load_relaxed(shared.limit);
  put.space_left = limit != 0 && tail + put.count - load_relaxed(shared.cached_head) < limit;
  return put;
}

// Writes as many messages as there is space for, then `tail`. There must be space for the first one.
std::size_t RingTail::write(const Segment& segment, std::span<Outgoing> messages, Identity me, bool watched) noexcept {
  SHMTREE_DCHECK(segment && memory::HeldLocks::contains(control_.shared.senders_lock));
  ChannelHeader& shared = control_.shared;
  const std::uint64_t tail = load_relaxed(shared.tail);
  const std::uint64_t head = load_relaxed(shared.cached_head);
  std::uint64_t most = messages.size();
  if (const std::uint64_t limit = load_relaxed(shared.limit); limit != 0 && most > 1) {
    const std::uint64_t queued = tail - head + load_relaxed(shared.also_queued);
    most = std::min(most, limit - std::min(queued, limit));  // 0 if more returned meanwhile; the first has space
  }
  most = std::min(most, segment.slots - (tail - std::max(head, segment.base)));
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  do {
    SHMTREE_DCHECK(messages[count].block.valid() || messages[count].size() <= control_.inline_bytes());
    write_slot(segment.at(tail + count), tail + count, messages[count], me);
    bytes += messages[count].counted_bytes();
    ++count;
    // Space in bytes is computed from `bytes_in`, which does not include the messages of this loop yet.
  } while (count < most && shared.max_bytes == 0 && !messages[count].block.valid());
  store_relaxed(shared.bytes_in, load_relaxed(shared.bytes_in) + bytes);
  if (watched) add(shared.pending_wakes, 1u);
  if (const std::uint64_t tap = load_relaxed(shared.tap); tap != 0) [[unlikely]] {
    if (const auto notes = TapNotes::at(control_.arena.blocks(), control_.slot_bytes, tap))
      notes->add(segment, tail, count);
  }
  const bool counts = counts_.load(std::memory_order_relaxed);
  if (counts) {
    store_relaxed(shared.counted_then, load_relaxed(shared.counted) + count);
    store_release(shared.counting_tail, tail + count);
  }
  store_release(shared.tail, tail + count);
  if (counts) finish_count(shared);
  sent_by_.store(me, std::memory_order_relaxed);
  sent_end_.store(tail + count, std::memory_order_release);
  const std::uint64_t next = tail + count;
  if (next - std::max(head, segment.base) < segment.slots) {  // free, so no receiver is about to read it
    const std::uint64_t frame = messages[0].block.valid() ? 0 : messages[0].size();
    prefetch_for_write(&segment.at(next), sizeof(RingSlot) + frame);
  }
  return count;
}

void RingTail::finish_count(ChannelHeader& shared) noexcept {
  SHMTREE_DCHECK(memory::HeldLocks::contains(shared.senders_lock));
  const std::uint64_t counting = load_acquire(shared.counting_tail);
  if (counting == 0) return;
  if (load_acquire(shared.tail) >= counting) store_release(shared.counted, load_relaxed(shared.counted_then));
  store_release(shared.counting_tail, std::uint64_t{0});
}

// A put of a dead process stays in progress until recovery takes over its lock, and `tail` does not move before that.
std::uint64_t RingTail::counted(const ChannelHeader& shared) noexcept {
  for (;;) {
    const std::uint64_t counting = load_acquire(shared.counting_tail);
    const std::uint64_t then = load_acquire(shared.counted_then), counted = load_acquire(shared.counted);
    const bool is_put = counting != 0 && load_acquire(shared.tail) >= counting;
    if (load_acquire(shared.counting_tail) == counting) return is_put ? then : counted;
  }
}

// True if there is memory for the next segment, and for as much again after growth stops.
bool RingTail::has_memory_for_ring(std::uint64_t slots) const noexcept {
  const std::uint64_t bytes = segment_bytes(std::clamp(slots, kFirstSlots, kMaxSlots), control_.slot_bytes);
  return control_.arena.pool().free_bytes() >= 2 * bytes;
}

// Called when the last segment has no slot left.
bool RingTail::may_grow(const Segment& last, std::uint64_t queued) noexcept {
  ChannelHeader& shared = control_.shared;
  if (load_relaxed(shared.limit) != shared.capacity || has_memory_for_ring(last.slots)) return true;
  store_relaxed(shared.limit, queued);
  return false;
}

// The store of `next` makes the successor part of the ring. Tickets from `tail` on belong to it.
void RingTail::link(const Segment& last, OwnedBlock block, std::uint64_t tail) noexcept {
  SHMTREE_DCHECK(last && block.valid() && memory::HeldLocks::contains(control_.shared.senders_lock));
  reinterpret_cast<SegmentHeader*>(block.data())->base = tail;
  const std::uint64_t packed = memory::pack(block.ref());
  store_release(last.header->next, packed);
  store_release(control_.shared.tail_segment, packed);
  block.publish();
}

Result<OwnedBlock> RingTail::new_segment(std::uint64_t slots, const WaitContext& wait) const {
  SHMTREE_DCHECK(!memory::HeldLocks::contains(control_.shared.senders_lock));
  const std::uint64_t share = std::bit_floor(control_.arena.pool().max_bytes() / 16 / control_.slot_bytes);
  slots = std::clamp(slots, kFirstSlots, std::clamp(share, kFirstSlots, kMaxSlots));
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
  return control_.arena.unmapped("the channel's ring");
}

Error Receipt::error(const memory::Arena& arena) const {
  if (!starved) return Error{Code::kCorrupt, "the channel's ring is damaged"};
  Error error{Code::kOutOfSharedMemory, "message " + std::to_string(ticket) + " stays in the channel: "};
  if (wanted != 0 && !arena.has_file()) {
    error = arena.unmapped("message " + std::to_string(ticket) + ", which stays in the channel");
    error.ticket = ticket;
    return error;
  }
  error.ticket = ticket;
  if (wanted == 0) {
    error.message += "out of memory: this process cannot record that it holds the message";
    return error;
  }
  error.message += "this process has no address space to map " + std::to_string(wanted) + " bytes for it";
  if (const auto left = addresses_left()) {
    error.message += "; its limit (RLIMIT_AS) leaves " + std::to_string(*left) + " bytes";
  }
  return error;
}

std::uint64_t RingHead::size() const noexcept {
  const ChannelHeader& shared = control_.shared;
  for (;;) {  // exact, since head did not move while tail was read
    const std::uint64_t head = load_seq_cst(shared.head);
    const std::uint64_t tail = load_seq_cst(shared.tail);
    const std::uint32_t returned = load_seq_cst(shared.returned);
    if (load_seq_cst(shared.head) == head) return std::max(tail, head) - head + returned;
  }
}

bool RingHead::receive(Incoming& out, Identity me, Receipt& receipt) noexcept {
  const RingSlot* slot = first(receipt);
  if (slot == nullptr || !hold(*slot, me, 1, out, receipt)) return false;
  advance(out.in_block() ? control_.counted_bytes(out.bytes_, out.block_) : out.bytes_);
  fetch_next(out.bytes_);
  return true;
}

const RingSlot* RingHead::first(Receipt& receipt) noexcept {
  SHMTREE_DCHECK(memory::HeldLocks::contains(control_.shared.receivers_lock));
  ChannelHeader& shared = control_.shared;
  const std::uint64_t head = load_relaxed(shared.head);
  if (head == load_relaxed(shared.cached_tail)) {
    const std::uint64_t tail = load_acquire(shared.tail);  // makes the slots below it visible
    store_relaxed(shared.cached_tail, tail);
    if (head == tail) return nullptr;
  }
  std::uint64_t packed = load_relaxed(shared.head_segment);
  Segment first = known_first_.at(control_, packed);
  while (first) {
    const std::uint64_t next = load_acquire(first.header->next);
    if (next == 0) break;
    const Segment successor = segment_at(control_, next);
    if (!successor || successor.base <= first.base) {
      first = Segment{};
      packed = next;
      break;
    }
    if (head < successor.base) break;
    if (receipt.spent_count == std::size(receipt.spent)) return nullptr;  // the next call continues here
    store_release(shared.head_segment, next);
    receipt.spent[receipt.spent_count++] = packed;
    packed = next;
    first = successor;
  }
  if (first) {
    const RingSlot& slot = first.at(head);
    if (load_once(slot.ticket) == head) return &slot;
  }
  const std::uint64_t tail = load_acquire(shared.tail);
  receipt.damaged = tail != head;  // otherwise `cached_tail` was too high
  if (!first && arena_->blocks().is_unmapped(memory::unpack(packed))) receipt.starve(head, bytes_of_class(packed));
  store_relaxed(shared.cached_tail, tail);
  return nullptr;
}

bool RingHead::hold(const RingSlot& slot, Identity me, std::uint32_t attempts, Incoming& out,
                    Receipt& receipt) noexcept {
  SHMTREE_DCHECK(memory::HeldLocks::contains(control_.shared.receivers_lock));
  SHMTREE_DCHECK(out.arena_ == nullptr && attempts != 0 && me != memory::kNoIdentity);
  out.ticket_ = load_once(slot.ticket);
  const std::uint64_t bytes = load_once(slot.bytes);
  out.bytes_ = bytes;
  out.sender_ = load_once(slot.sender);
  out.receiver_ = me;
  out.attempts_ = attempts;
  out.came_back_ = false;
  out.not_built_ = false;
  out.failed_before_ = 0;
  out.block_ = BlockRef{};
  out.data_ = nullptr;
  const std::uint64_t packed = load_once(slot.block);
  if (packed == 0) {
    if (bytes > control_.inline_bytes()) return true;
    std::memcpy(out.inline_data_, slot.inline_data(), bytes);
    out.data_ = out.inline_data_;
    return true;
  }
  const BlockRef ref = memory::unpack(packed);
  if (!arena_->blocks().is_current(ref)) {
    return !arena_->blocks().is_unmapped(ref) || receipt.starve(out.ticket_, bytes_of_class(packed));
  }
  const std::byte* data = arena_->blocks().address(ref.id);
  if (data == nullptr) return receipt.starve(out.ticket_, bytes_of_class(packed));
  // The block and its list of references do not move meanwhile.
  if (const std::uint64_t wanted = arena_->blocks().unmappable_reference(ref.id); wanted != 0) {
    return receipt.starve(out.ticket_, wanted);
  }
  const std::uint64_t space = arena_->blocks().capacity_of(ref.id);
  if (!arena_->holders().begin(ref, me)) return receipt.starve(out.ticket_, 0);
  arena_->blocks().make_live(ref);
  out.block_ = ref;
  out.arena_ = arena_;
  if (bytes <= space) out.data_ = data;  // otherwise damaged: an empty frame
  return true;
}

void RingHead::note_receipt() const noexcept {
  const auto notes = TapNotes::at(control_.arena.blocks(), control_.slot_bytes, load_relaxed(control_.shared.tap));
  if (notes) notes->note_receipt(load_relaxed(control_.shared.head));
}

// Prefetches the next message from the sender's core while this one is decoded. It most likely has the same size.
void RingHead::fetch_next(std::uint64_t bytes) const noexcept {
  const std::uint64_t head = load_relaxed(control_.shared.head);
  const Segment& segment = known_first_.last();
  if (head == load_relaxed(control_.shared.cached_tail) || !segment) return;
  prefetch(&segment.at(head), sizeof(RingSlot) + (bytes <= control_.inline_bytes() ? bytes : 0));
}

}  // namespace shmtree::channel
