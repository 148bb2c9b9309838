// Putting messages. Between the senders' lock and its release: a look for room, stores into a slot, the store of
// `tail`.
#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "channel/channel.h"
#include "channel/waiting.h"
#include "platform/atomics.h"

namespace shmtree::channel {

using namespace platform;
using memory::BlockKind;
using memory::EventWait;

namespace {

std::string number(std::uint64_t value) {
  return std::to_string(value);
}

bool is_no_memory(Code code) noexcept {
  return code == Code::kFull || code == Code::kOutOfSharedMemory;
}

// A lock that was not to be had in time is a channel that stayed full.
Error in_time(Error error) {
  if (error.code == Code::kTimeout) error.code = Code::kFull;
  return error;
}

}  // namespace

// Whether a message of `bytes` can be stored at `tail` now. Without the lock it is true for some instant of the call.
Channel::Room Channel::room_for(std::uint64_t bytes, std::uint64_t unallocated, Look look, Segment* ring) noexcept {
  ChannelHeader& shared = header();
  if (is_shut_down()) return Room::kShutDown;
  if (is_reserved(End::kSending)) return Room::kFull;
  const std::uint64_t tail = load_acquire(shared.tail);
  const bool locked = look == Look::kLocked;
  Segment last;
  if (look != Look::kAtCounts) {
    const std::uint64_t packed = load_acquire(shared.tail_segment);
    last = locked ? segment(packed, known_last_) : segment(packed);
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
  const bool counts_bytes = shared.max_bytes != 0 || bytes > inline_bytes();
  if (!locked || over_count() || over_slots() || counts_bytes) {
    head = load_acquire(shared.head);  // receivers are done with the slots below
    if (locked) store_relaxed(shared.cached_head, head);
    if (over_count()) {
      if (limit == shared.capacity || (shared.capacity != 0 && queued() >= shared.capacity)) return Room::kFull;
      if (!last) last = segment(load_acquire(shared.tail_segment));
      return has_memory_for_ring(last.slots) ? Room::kRelieved : Room::kFullOfMemory;
    }
  }
  if (counts_bytes && queued() != 0) {
    const std::uint64_t in = load_relaxed(shared.bytes_in), out = load_acquire(shared.bytes_out);
    const std::uint64_t total = (in > out ? in - out : 0) + bytes;
    if (shared.max_bytes != 0 && total > shared.max_bytes) return Room::kFullOfBytes;
    // One channel may not queue up what the others need: as much stays free as it has queued.
    if (bytes > inline_bytes() && total + unallocated > arena_->pool().free_bytes()) return Room::kFullOfMemory;
  }
  if (!over_slots()) return Room::kYes;
  if (locked) {  // what is remembered of the segment may not be what those who wait see of it
    known_last_ = {};
    last = segment(load_relaxed(shared.tail_segment), known_last_);
    if (!last) return Room::kDamaged;
    if (ring != nullptr) *ring = last;
  }
  return over_slots() ? Room::kNeedsSegment : Room::kYes;
}

bool Channel::has_room() noexcept {
  const Room room = room_for(1, 0, Look::kAtCounts);  // no message is smaller
  return room == Room::kYes || room == Room::kRelieved;
}

// A message that would never fit.
Status Channel::refuse_at_once(std::uint64_t bytes) const {
  const std::uint64_t most = header().max_bytes;
  if (most != 0 && bytes > most) {
    return Error{Code::kMessageTooLarge,
                 "a message of " + number(bytes) + " bytes is over the channel's max_bytes of " + number(most)};
  }
  if (bytes > arena_->max_bytes()) {
    return Error{Code::kMessageTooLarge, "a message of " + number(bytes) + " bytes is over the arena's budget of " +
                                             number(arena_->max_bytes()) + " bytes (max_bytes)"};
  }
  return success();
}

// Whether the next would refuse it, where no error can be worded.
bool Channel::is_refused(const Outgoing& message) const noexcept {
  if (!message.block.valid() && message.inline_frame.size() > inline_bytes()) return true;
  const std::uint64_t most = header().max_bytes;
  return (most != 0 && message.size() > most) || message.size() > arena_->max_bytes();
}

Status Channel::check_outgoing(const Outgoing& message, Identity me) const {
  if (message.block.valid()) {
    if (message.block.writer() != me)
      return Error{Code::kInvalid, "this message is for the process to put that wrote it"};
  } else if (message.inline_frame.size() > inline_bytes()) {
    return Error{Code::kInvalid,
                 "a frame of " + number(message.inline_frame.size()) + " bytes is too large to go inline"};
  }
  return refuse_at_once(message.size());
}

Status Channel::wait_for_room(std::uint64_t bytes, const WaitContext& wait) {
  Status fits = refuse_at_once(bytes);
  if (!fits) return fits;
  Status room = wait_until_room(Blocked{bytes, bytes > inline_bytes() ? bytes : 0, true}, wait);
  leave_room_to_others();                    // the message is yet to be written, which may take long
  if (!room) settle_wake_fd(End::kSending);  // the descriptor may be readable for room that another used
  return room ? std::move(room) : in_time(std::move(room).error());
}

Error Channel::still_full() const {
  const std::uint64_t queued = size(), most = capacity(), most_bytes = header().max_bytes;
  const std::uint32_t returned = load_acquire(header().returned);
  const std::uint64_t bytes = load_acquire(header().bytes_in) - load_acquire(header().bytes_out);
  std::string text = "no room in time: " + number(queued) + (most == 0 ? "" : " of at most " + number(most)) +
                     " messages and " + number(bytes) + (most_bytes == 0 ? "" : " of at most " + number(most_bytes)) +
                     " bytes are queued";
  if (returned != 0) text += ", " + number(returned) + " of them messages that were taken and given back";
  if (most == 0 || queued < most) {
    text += "; one channel may queue no more bytes than its arena has left, " + number(arena_->pool().free_bytes()) +
            " of a budget of " + number(arena_->max_bytes());
  }
  return Error{Code::kFull, std::move(text)};
}

Status Channel::wait_until_room(const Blocked& blocked, const WaitContext& wait) {
  ChannelHeader& shared = header();
  Room room = Room::kFull;
  const auto has_room_now = [&] {
    room = room_for(blocked.bytes, blocked.unallocated, blocked.may_grow ? Look::kAtCounts : Look::kAtSlots);
    return room == Room::kYes || room == Room::kRelieved || room == Room::kDamaged || room == Room::kShutDown;
  };
  const auto places = [&]() -> std::uint64_t {
    if (!has_room_now()) return 0;
    return shared.capacity == 0 ? 1 : std::max<std::uint64_t>(shared.capacity - std::min(size(), shared.capacity), 1);
  };
  if (put_spinner_.until(places, shared.capacity / 2, wait)) return success();
  EventWait for_place(shared.space, wait), for_bytes(shared.freed_bytes, wait);
  EventWait for_memory(arena_->header().space, wait);
  for (bool looked = false;; looked = true) {
    const Room missing = room;
    EventWait& waiting = missing == Room::kFull ? for_place : missing == Room::kFullOfBytes ? for_bytes : for_memory;
    if (looked) {
      if (&waiting == &for_memory) for_bytes.arm();  // receivers leave memory to this channel as well
      waiting.arm();
    }
    if (has_room_now()) return success();
    if (looked && room != missing && !wait.deadline.passed()) {
      if (missing == Room::kFull) leave_room_to_others();
      continue;
    }
    if (arena_->participants().check(looked ? kLookedLatelyNs : kLookedJustNowNs)) {
      Status repaired = arena_->reconcile(wait);
      if (!repaired) return repaired;
      if (has_room_now()) return success();
    }
    if (is_over(End::kReceiving)) return end_error(End::kReceiving);
    if (!looked && !wait.deadline.is_immediate()) continue;
    switch (waiting.sleep()) {
      case EventWait::Wake::kLookAgain:
        if (!blocked.may_grow) return success();  // there may be memory now
        break;
      case EventWait::Wake::kInterrupted:
        leave_room_to_others();
        return Error{Code::kInterrupted, "interrupted while waiting to put"};
      case EventWait::Wake::kTimedOut:
        if (has_room_now()) return success();
        return still_full();
    }
  }
}

void Channel::write_slot(Slot& slot, std::uint64_t ticket, const Outgoing& message, Identity me) noexcept {
  slot.ticket = ticket;
  slot.bytes = message.size();
  slot.sender = me;
  if (message.block.valid()) {
    slot.block = memory::pack(message.block.ref());
    return;
  }
  slot.block = 0;
  const auto& frame = message.inline_frame;
  if (!frame.empty()) std::memcpy(slot.inline_data(), frame.data(), frame.size());
}

// What the ring grows by next, and what it goes on with when there is no more for that: as much again.
bool Channel::has_memory_for_ring(std::uint64_t slots) const noexcept {
  return arena_->pool().free_bytes() >= 2 * segment_bytes(std::clamp(slots, kFirstSlots, kMostSlots), slot_bytes_);
}

// Under the senders' lock, with no slot left in the last segment. Slots come and go by whole segments: a ring that has
// used up the arena would give no room again until its first segment is received. So it stops before that, at as many
// messages as there are then, and has memory left to put one more for each that is received.
bool Channel::may_grow_ring(const Segment& last, std::uint64_t queued) noexcept {
  ChannelHeader& shared = header();
  const std::uint64_t limit = load_relaxed(shared.limit);
  if (limit != shared.capacity || has_memory_for_ring(last.slots)) return true;
  store_relaxed(shared.limit, queued);
  return false;
}

// A segment of `slots` slots, or of fewer when there is no memory for that many. Does not wait for any: the messages
// that are in the ring already may be what holds it.
Result<OwnedBlock> Channel::new_segment(std::uint64_t slots, const WaitContext& wait) {
  const std::uint64_t share = std::bit_floor(arena_->max_bytes() / 16 / slot_bytes_);
  slots = std::clamp(slots, kFirstSlots, std::clamp(share, kFirstSlots, kMostSlots));
  for (;; slots /= 2) {
    auto block = arena_->allocate(segment_bytes(slots, slot_bytes_), BlockKind::kSegment,
                                  WaitContext{Deadline::immediate(), wait.hooks});
    if (block) {
      new (block->data()) SegmentHeader{0, slots, {0}, {}};
      return block;
    }
    if (!is_no_memory(block.code()) || slots == kFirstSlots) return block;
  }
}

// The store of `next` makes the successor part of the ring; tickets from `tail` on are its own.
void Channel::link_segment(OwnedBlock block, std::uint64_t tail) noexcept {
  ChannelHeader& shared = header();
  const Segment last = segment(load_relaxed(shared.tail_segment));
  if (!last) return;
  reinterpret_cast<SegmentHeader*>(block.data())->base = tail;
  const std::uint64_t packed = memory::pack(block.ref());
  store_release(last.header->next, packed);
  store_release(shared.tail_segment, packed);
  block.publish();
}

// Under the senders' lock, with room for the first: writes as many as there is room for, then `tail`, once.
std::size_t Channel::write_some(const Segment& segment, std::span<Outgoing> messages, Identity me,
                                bool watched) noexcept {
  ChannelHeader& shared = header();
  const std::uint64_t tail = load_relaxed(shared.tail);
  const std::uint64_t head = load_relaxed(shared.cached_head);
  std::uint64_t most = std::min<std::uint64_t>(messages.size(), kMostAtOnce);
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
    prefetch_for_write(&segment.at(next), sizeof(Slot) + frame);
  }
  return count;
}

// Puts the first few of `messages` that there is room for under one lock. None: wait_until_room() is next.
Result<Channel::Put> Channel::put_some(std::span<Outgoing> messages, const WaitContext& wait) {
  ChannelHeader& shared = header();
  auto me = arena_->identity();
  if (!me) return std::move(me).error();
  Status fits = check_outgoing(messages[0], *me);
  if (!fits) return std::move(fits).error();
  OwnedBlock spare;
  for (;;) {
    Status locked = arena_->lock(shared.senders_lock, wait);
    if (!locked) return std::move(locked).error();
    const std::uint64_t tail = load_relaxed(shared.tail);
    Segment last;
    const Room room = room_for(messages[0].size(), 0, Look::kLocked, &last);
    if (room == Room::kNeedsSegment && spare.valid() && last) {
      link_segment(std::move(spare), tail);
      last = segment(load_relaxed(shared.tail_segment));
    } else if (room != Room::kYes) {
      const std::uint64_t slots = last.slots * 2;
      if (room == Room::kRelieved) store_relaxed(shared.limit, shared.capacity);
      const bool may_grow = room == Room::kNeedsSegment && may_grow_ring(last, tail - load_relaxed(shared.cached_head));
      arena_->unlock(shared.senders_lock);
      if (room == Room::kShutDown) return shut_down_error();
      if (room == Room::kDamaged) return no_ring();
      if (!may_grow) return Put{0, 0, true};
      auto grown = new_segment(slots, wait);  // the arena lock is never taken under the senders' one
      if (!grown) {
        // kTimeout: the arena's lock was not to be had at once, which the caller's deadline is not about.
        const bool later = is_no_memory(grown.code()) || grown.code() == Code::kTimeout;
        if (later) return Put{0, 0, false};
        return std::move(grown).error();
      }
      spare = std::move(*grown);
      continue;
    }
    // The later ones of a batch stop it where they would be refused, to be refused when they come first.
    std::size_t sound = 1;
    while (sound < std::min(messages.size(), kMostAtOnce) && !is_refused(messages[sound])) ++sound;
    const bool watched = load_relaxed(shared.watched[static_cast<std::uint32_t>(End::kReceiving)]) != 0;
    const std::size_t count = last ? write_some(last, messages.first(sound), *me, watched) : 0;
    const std::uint64_t limit = load_relaxed(shared.limit);
    const bool room_left = limit != 0 && tail + count - load_relaxed(shared.cached_head) < limit;
    arena_->unlock(shared.senders_lock);
    if (count == 0) return no_ring();
    for (std::size_t i = 0; i < count; ++i) {
      if (messages[i].block.valid()) messages[i].block.publish();
    }
    mark_used(End::kSending, *me);
    note_sent(tail, count);
    published(count, watched);
    // One of those who wait was woken for several places: the next is for it to wake.
    if (room_left && load_relaxed(shared.space.waiters) != 0) notify(shared.space);
    return Put{count, tail, true};
  }
}

// Why there is no last segment to write to.
Error Channel::no_ring() const {
  if (!arena_->blocks().is_unmapped(memory::unpack(load_acquire(header().tail_segment)))) {
    return Error{Code::kCorrupt, "the channel's ring is damaged"};
  }
  return Error{Code::kOutOfSharedMemory, "no address space left to map the channel's ring"};
}

// Puts the first few of `messages`, once there is room. Room that was seen and is not to be had is taken for another's
// until the deadline, and not once more: words that contradict each other must not keep the call for ever.
Result<Channel::Put> Channel::put_first(std::span<Outgoing> messages, const WaitContext& wait) {
  for (bool late = false;; late = wait.deadline.passed()) {
    auto put = put_some(messages, wait);
    if (!put) {
      leave_room_to_others();
      return in_time(std::move(put).error());
    }
    if (put->count != 0) return put;
    if (late) return still_full();
    Status room = wait_until_room(Blocked{messages[0].size(), 0, put->may_grow}, wait);
    if (!room) return in_time(std::move(room).error());
  }
}

Result<std::uint64_t> Channel::put(Outgoing& message, const WaitContext& wait) {
  auto put = put_first({&message, 1}, wait);
  if (!put) return std::move(put).error();
  return put->first;
}

Status Channel::put_many(std::span<Outgoing> messages, const WaitContext& wait) {
  std::size_t done = 0;
  while (done < messages.size()) {
    auto put = put_first(messages.subspan(done), wait);
    if (!put) {
      Error error = std::move(put).error();
      error.completed = done;
      return error;
    }
    done += put->count;
  }
  return success();
}

void Channel::published(std::size_t count, bool watched) noexcept {
  if (watched) send_announced_wakes();
  settle_wake_fd(End::kSending);
  // Of those who wait, one may have the messages for itself.
  if (count > 1 || load_relaxed(header().reserved[static_cast<std::uint32_t>(End::kReceiving)]) != memory::kNobody) {
    notify_all(header().items);
  } else {
    notify(header().items);
  }
}

}  // namespace shmtree::channel
