#include "channel/ring_head.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "platform/machine.h"

namespace shmtree::channel {

using namespace platform;

namespace {

std::uint64_t bytes_of_class(std::uint64_t packed) noexcept {
  return std::uint64_t{1} << memory::unpack(packed).id.size_class();
}

}  // namespace

Error Receipt::error() const {
  if (!starved) return Error{Code::kCorrupt, "the channel's ring is damaged"};
  Error error{Code::kOutOfSharedMemory, "message " + std::to_string(ticket) + " stays in the channel: "};
  error.ticket = ticket;
  if (wanted == 0) {
    error.message += "this process has no memory to note that it holds it";
    return error;
  }
  error.message += "this process cannot map " + std::to_string(wanted) + " bytes for it";
  if (const auto left = addresses_left()) {
    error.message += ", its limit (RLIMIT_AS) leaves it " + std::to_string(*left);
  }
  return error;
}

std::uint64_t RingHead::size() const noexcept {
  const ChannelHeader& shared = control_.shared;
  for (;;) {  // exact: head did not move while tail was read
    const std::uint64_t head = load_full(shared.head);
    const std::uint64_t tail = load_full(shared.tail);
    const std::uint32_t returned = load_full(shared.returned);
    if (load_full(shared.head) == head) return std::max(tail, head) - head + returned;
  }
}

bool RingHead::receive(Incoming& out, Identity me, Receipt& receipt) noexcept {
  const RingSlot* slot = first(receipt);
  if (slot == nullptr || !hold(*slot, me, 1, out, receipt)) return false;
  advance(out.bytes_);
  fetch_next(out.bytes_);
  return true;
}

const RingSlot* RingHead::first(Receipt& receipt) noexcept {
  ChannelHeader& shared = control_.shared;
  const std::uint64_t head = load_relaxed(shared.head);
  if (head == load_relaxed(shared.cached_tail)) {
    const std::uint64_t tail = load_acquire(shared.tail);  // sees the slots below
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
    if (receipt.spent_count == std::size(receipt.spent)) return nullptr;  // the next call goes on from here
    store_release(shared.head_segment, next);
    receipt.spent[receipt.spent_count++] = memory::unpack(packed);
    packed = next;
    first = successor;
  }
  if (first) {
    const RingSlot& slot = first.at(head);
    if (load_once(slot.ticket) == head) return &slot;
  }
  const std::uint64_t tail = load_acquire(shared.tail);
  receipt.damaged = tail != head;  // else `cached_tail` said too much
  if (!first && arena_->blocks().is_unmapped(memory::unpack(packed))) receipt.starve(head, bytes_of_class(packed));
  store_relaxed(shared.cached_tail, tail);
  return nullptr;
}

bool RingHead::hold(const RingSlot& slot, Identity me, std::uint32_t attempts, Incoming& out,
                    Receipt& receipt) noexcept {
  out.ticket_ = load_once(slot.ticket);
  const std::uint64_t bytes = load_once(slot.bytes);
  out.bytes_ = bytes;
  out.sender_ = load_once(slot.sender);
  out.receiver_ = me;
  out.attempts_ = attempts;
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
  // It stays where it is meanwhile, and so does its list.
  if (const std::uint64_t wanted = arena_->blocks().unmappable_reference(ref.id); wanted != 0) {
    return receipt.starve(out.ticket_, wanted);
  }
  const std::uint64_t room = arena_->blocks().room_of(ref.id);
  if (!arena_->holders().begin(ref, me)) return receipt.starve(out.ticket_, 0);
  arena_->blocks().make_live(ref);
  out.block_ = ref;
  out.arena_ = arena_;
  if (bytes <= room) out.data_ = data;  // else damaged: an empty frame
  return true;
}

// The next message, if there is one, comes from the sender's core while this one is decoded. It is most likely of the
// same size.
void RingHead::fetch_next(std::uint64_t bytes) const noexcept {
  const std::uint64_t head = load_relaxed(control_.shared.head);
  const Segment& known = known_first_.last();
  if (head == load_relaxed(control_.shared.cached_tail) || !known) return;
  prefetch(&known.at(head), sizeof(RingSlot) + (bytes <= control_.inline_bytes() ? bytes : 0));
}

}  // namespace shmtree::channel
