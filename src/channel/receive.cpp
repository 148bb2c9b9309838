// Getting messages. Between the receivers' lock and its release: a look into the ring, the holder bit, the store of
// `head`.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "channel/channel.h"
#include "channel/waiting.h"
#include "platform/atomics.h"
#include "platform/machine.h"

namespace shmtree::channel {

using namespace platform;

namespace {

// A lock that was not to be had in time is a channel that gave nothing.
Error in_time(Error error) {
  if (error.code == Code::kTimeout) error.code = Code::kEmpty;
  return error;
}

std::uint64_t bytes_of_class(std::uint64_t packed) noexcept {
  return std::uint64_t{1} << memory::unpack(packed).id.size_class();
}

}  // namespace

bool Channel::has_messages() const noexcept {
  const ChannelHeader& shared = header();
  return load_full(shared.tail) != load_full(shared.head) || load_full(shared.returned) != 0;
}

// Under the receivers' lock: the slot at `head`, or null when the ring is empty or damaged. Moves to the next segment
// when the first is used up; the one left behind is released after unlocking.
Slot* Channel::first_slot(Receipt& receipt) noexcept {
  ChannelHeader& shared = header();
  const std::uint64_t head = load_relaxed(shared.head);
  if (head == load_relaxed(shared.cached_tail)) {
    const std::uint64_t tail = load_acquire(shared.tail);  // sees the slots below
    store_relaxed(shared.cached_tail, tail);
    if (head == tail) return nullptr;
  }
  std::uint64_t packed = load_relaxed(shared.head_segment);
  Segment first = segment(packed, known_first_);
  while (first) {
    const std::uint64_t next = load_acquire(first.header->next);
    if (next == 0) break;
    const Segment successor = segment(next);
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
    Slot& slot = first.at(head);
    if (load_once(slot.ticket) == head) return &slot;
  }
  const std::uint64_t tail = load_acquire(shared.tail);
  receipt.damaged = tail != head;  // else `cached_tail` said too much
  if (!first && arena_->blocks().is_unmapped(memory::unpack(packed))) receipt.starve(head, bytes_of_class(packed));
  store_relaxed(shared.cached_tail, tail);
  return nullptr;
}

// Copies what the slot says into `out` and, for a block, sets the holder bit. Nothing has moved yet. False when this
// process cannot hold the block, or map it and all that it refers to: another may.
bool Channel::receive_slot(const Slot& slot, Identity me, Incoming& out, Receipt& receipt) noexcept {
  out.ticket_ = load_once(slot.ticket);
  const std::uint64_t bytes = load_once(slot.bytes);
  out.bytes_ = bytes;
  out.sender_ = load_once(slot.sender);
  out.receiver_ = me;
  out.attempts_ = 1;
  out.block_ = BlockRef{};
  out.data_ = nullptr;
  const std::uint64_t packed = load_once(slot.block);
  if (packed == 0) {
    if (bytes > inline_bytes()) return true;
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
void Channel::fetch_next(std::uint64_t bytes) const noexcept {
  const std::uint64_t head = load_relaxed(header().head);
  if (head == load_relaxed(header().cached_tail) || !known_first_.segment) return;
  prefetch(&known_first_.segment.at(head), sizeof(Slot) + (bytes <= inline_bytes() ? bytes : 0));
}

// Under the receivers' lock: the oldest message that was returned, else the first of the ring, with one store of
// `head`.
bool Channel::receive_next(Incoming& out, Identity me, Receipt& receipt) noexcept {
  ChannelHeader& shared = header();
  if (load_relaxed(shared.returned) == 0 || !serve_returned(me, out, receipt)) {
    if (receipt.starved) return false;
    const Slot* slot = first_slot(receipt);
    if (slot == nullptr || !receive_slot(*slot, me, out, receipt)) return false;
    store_relaxed(shared.bytes_out, load_relaxed(shared.bytes_out) + out.bytes_);
    store_release(shared.head, load_relaxed(shared.head) + 1);  // the slot may be written again
  }
  fetch_next(out.bytes_);
  return true;
}

// Why the first message was not received, though there is one.
Error Channel::unreceived(const Receipt& receipt) const {
  if (!receipt.starved) return Error{Code::kCorrupt, "the channel's ring is damaged"};
  Error error{Code::kOutOfSharedMemory, "message " + std::to_string(receipt.ticket) + " stays in the channel: "};
  error.ticket = receipt.ticket;
  if (receipt.wanted == 0) {
    error.message += "this process has no memory to note that it holds it";
    return error;
  }
  error.message += "this process cannot map " + std::to_string(receipt.wanted) + " bytes for it";
  if (const auto left = addresses_left()) {
    error.message += ", its limit (RLIMIT_AS) leaves it " + std::to_string(*left);
  }
  return error;
}

// After unlocking: gives back the segments that were used up.
void Channel::settle_receipt(const Receipt& receipt) noexcept {
  for (std::size_t i = 0; i < receipt.spent_count; ++i) arena_->reclaimer().collect(receipt.spent[i]);
}

// After unlocking: wakes those who wait for the room, for the messages to be received, or for what is left. Of those
// who wait for a place one wakes, and the next when that one has left some: see put_some().
void Channel::received() noexcept {
  ChannelHeader& shared = header();
  full_fence();  // what was received is visible before the flags are read
  wake_watchers(End::kSending);
  settle_wake_fd(End::kReceiving);
  if (load_relaxed(shared.freed_bytes.waiters) != 0) {
    notify_all(shared.freed_bytes);
    notify_all(arena_->header().space);
  }
  if (load_relaxed(shared.acked.waiters) != 0) notify_all(shared.acked);
  if (load_relaxed(shared.items.waiters) != 0 && has_messages()) notify(shared.items);
  if (load_relaxed(shared.space.waiters) != 0) notify(shared.space);
}

// Whether a message was there.
Result<bool> Channel::get_now(Incoming& out, Identity me, const WaitContext& wait) {
  ChannelHeader& shared = header();
  if (kept_here() != 0 && serve_kept(out)) [[unlikely]]
    return true;
  // The sender's line is read only when those it is known to have put are used up.
  if (load_relaxed(shared.head) == load_relaxed(shared.cached_tail) && !has_messages()) return false;
  Status locked = arena_->lock(shared.receivers_lock, wait);
  if (!locked) return in_time(std::move(locked).error());
  if (const Access access = receiving_access(); access != Access::kFree) {
    arena_->unlock(shared.receivers_lock);
    if (access == Access::kShutDown) return discarded(wait);
    return false;
  }
  Receipt receipt;
  const bool got = receive_next(out, me, receipt);
  arena_->unlock(shared.receivers_lock);
  settle_receipt(receipt);
  mark_used(End::kReceiving, me);
  if (got) {
    received();
  } else if (receipt.damaged || receipt.starved) {
    return unreceived(receipt);
  }
  return got;
}

Result<Incoming> Channel::get(const WaitContext& wait) {
  Incoming message;
  Status got = get(message, wait);
  if (!got) return std::move(got).error();
  return message;
}

Status Channel::get(Incoming& out, const WaitContext& wait) {
  for (;;) {
    auto me = arena_->identity();  // each time: the wait may run code that forks, and then goes on in the child
    if (!me) return std::move(me).error();
    const bool shut_down = is_shut_down();  // before the look: what was put before it is still found
    auto got = get_now(out, *me, wait);
    if (!got) {
      leave_messages_to_others();  // another process may have what this one lacks
      return std::move(got).error();
    }
    if (*got) return success();
    mark_used(End::kReceiving, *me);
    if (shut_down) return shut_down_error();
    Status waited = wait_until_ready(wait);
    if (!waited) {
      settle_wake_fd(End::kReceiving);  // the descriptor may be readable for a message that another received
      return in_time(std::move(waited).error());
    }
  }
}

Status Channel::wait_until_ready(const WaitContext& wait) {
  ChannelHeader& shared = header();
  const auto is_ready = [this] { return can_receive() || is_shut_down(); };
  const auto messages = [&] { return is_ready() ? std::max<std::uint64_t>(size(), 1) : 0; };
  if (get_spinner_.until(messages, shared.capacity == 0 ? ~std::uint64_t{0} : shared.capacity / 2, wait)) {
    return success();
  }
  Status waited = wait_at(shared.items, End::kSending, "a message", is_ready, wait);
  // An interrupted call may have been woken for a message that it leaves.
  if (!waited && waited.code() == Code::kInterrupted) leave_messages_to_others();
  return waited;
}

}  // namespace shmtree::channel
