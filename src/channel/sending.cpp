#include "channel/sending.h"

#include <algorithm>
#include <string>

#include "channel/deadlock.h"
#include "memory/arena.h"
#include "memory/event.h"
#include "platform/memory_claim.h"

namespace shmtree::channel {

using namespace platform;
using memory::EventWait;
using memory::WaitFor;
using Space = RingTail::Space;
using std::to_string;

namespace {

// Number of retries of a sender that drops messages: because a receiver took the message first, or because another
// sender used the space after the deadline.
constexpr int kMaxFailedDrops = 8, kMaxLateTurns = 64;
constexpr std::uint64_t kRingStepBytes = 1u << 20;  // roughly the growth step of a long ring

// Sleeps at the event of the resource that the last check found lacking: a slot, bytes of the channel, or memory of the
// arena. Between arm() and sleep() a check may find another one lacking; then call arm() again.
class SpaceWait {
 public:
  // `space` is the result of the last check, and must outlive this object.
  SpaceWait(const Control& control, const Space& space, const WaitContext& wait) noexcept
      : space_(space),
        lacked_(space),
        slot_(control.shared.space, control.sleep_at(End::kSending, WaitFor::kSpace), wait),
        bytes_(control.shared.freed_bytes, control.sleep_at(End::kSending, WaitFor::kSpace), wait),
        memory_(control.arena.header().space, control.sleep_at(End::kSending, WaitFor::kMemory), wait) {}

  void arm() noexcept {
    lacked_ = space_;
    EventWait& waiting = this->waiting();
    if (&waiting == &memory_) bytes_.arm();  // receivers also free memory through this channel
    waiting.arm();
  }
  EventWait::Wake sleep() noexcept {
    slept_ = true;
    return waiting().sleep();
  }
  // Returns the resource that the armed event stands for.
  Space lacked() const noexcept { return lacked_; }
  bool slept() const noexcept { return slept_; }

 private:
  EventWait& waiting() noexcept {
    return lacked_ == Space::kFull ? slot_ : lacked_ == Space::kFullOfBytes ? bytes_ : memory_;
  }

  const Space& space_;
  Space lacked_;
  bool slept_ = false;
  EventWait slot_, bytes_, memory_;
};

}  // namespace

// Returns an error for a message that could never fit.
Status Sending::refuse_at_once(std::uint64_t bytes, std::uint64_t referred_bytes) const {
  const std::uint64_t most = parts_.control.shared.max_bytes, budget = parts_.control.arena.pool().max_bytes();
  if (most != 0 && bytes + referred_bytes > most) {
    const std::string also = referred_bytes == 0 ? "" : ", and " + to_string(referred_bytes) + " passed by reference,";
    return Error{Code::kMessageTooLarge, "a message of " + to_string(bytes) + " bytes" + also +
                                             " is over the channel's max_bytes of " + to_string(most)};
  }
  if (bytes > budget) {
    return Error{Code::kMessageTooLarge, "a message of " + to_string(bytes) + " bytes is over the arena's budget of " +
                                             to_string(budget) + " bytes (max_bytes)"};
  }
  return success();
}

Status Sending::check(Outgoing& message, Identity me) const {
  const std::uint64_t bytes = message.size();
  if (message.block.valid()) {
    if (message.block.writer() != me)
      return Error{Code::kInvalid, "only the process that wrote this message can put it"};
    message.referred_bytes = parts_.control.arena.blocks().referred_bytes(message.block.ref());
  } else if (bytes > parts_.control.inline_bytes()) {
    return Error{Code::kInvalid, "a frame of " + to_string(bytes) + " bytes is too large to go inline"};
  }
  return refuse_at_once(bytes, message.referred());
}

// Returns how many messages of a batch can be put together. A message that would be refused ends the batch, and is
// refused once it is the first.
std::size_t Sending::count_sound(std::span<Outgoing> messages, Identity me) const {
  std::size_t sound = 1;
  while (sound < std::min(messages.size(), kMaxAtOnce) && check(messages[sound], me)) ++sound;
  return sound;
}

Status Sending::wait_for_space(std::uint64_t bytes, const WaitContext& wait) {
  Status fits = refuse_at_once(bytes, 0);
  if (!fits) return fits;
  Status space = wait_until_space(bytes, 0, bytes > parts_.control.inline_bytes() ? bytes : 0, true, wait);
  parts_.watchers.leave_space_to_others();                // writing the message may take long
  if (!space) parts_.watchers.refresh_fd(End::kSending);  // may be readable for space that is used
  return space ? std::move(space) : in_time(std::move(space).error(), Code::kFull);
}

Result<OwnedBlock> Sending::reserve(std::uint64_t bytes, const WaitContext& wait) {
  Status space = wait_for_space(bytes, wait);
  if (!space) return std::move(space).error();
  auto block = parts_.control.arena.allocate(bytes, memory::BlockKind::kMessage, wait);
  if (!block) return in_time(std::move(block).error(), Code::kFull);
  return block;
}

Status Sending::check_receivers() {
  auto me = parts_.control.arena.identity();
  if (!me) return std::move(me).error();
  parts_.membership.mark_used(End::kSending, *me);
  const Ends& ends = parts_.ends;
  const bool must_report =
      ends.has_killed_members(End::kReceiving) || !parts_.membership.is_member(End::kReceiving, *me);
  return must_report ? ends.check_open(End::kReceiving) : success();
}

Status Sending::wait_for_receivers(std::uint64_t count, const WaitContext& wait) {
  auto me = parts_.control.arena.identity();
  if (!me) return std::move(me).error();
  parts_.membership.mark_used(End::kSending, *me);
  memory::poll_for_deaths(parts_.control.arena, 0);
  const auto attached = [&] { return parts_.ends.attached(End::kReceiving); };
  const auto are_attached = [&] { return attached() >= count; };
  const auto recover = [&](bool first) {
    return memory::recover_from_deaths(parts_.control.arena, wait_policy::alive_within_ns(!first), wait);
  };
  // Observers have no word for this sleep.
  EventWait waiting(parts_.control.shared.acked, parts_.control.sleep_for(WaitFor::kUnsaid), wait);
  auto came = memory::wait_until(waiting, wait, "receivers", are_attached, recover, are_attached);
  if (!came) return std::move(came).error();
  if (*came) return success();
  return Error{Code::kTimeout,
               to_string(attached()) + " of " + to_string(count) + " receivers were attached within the timeout"};
}

Error Sending::still_full() const {
  const ChannelHeader& shared = parts_.control.shared;
  const std::uint64_t queued = parts_.watchers.size(), most = shared.capacity, max_bytes = shared.max_bytes;
  const std::uint32_t returned = load_acquire(shared.returned);
  std::string text = "no space within the timeout: " + to_string(queued) +
                     (most == 0 ? "" : " of at most " + to_string(most)) + " messages and " +
                     to_string(parts_.control.queued_bytes()) +
                     (max_bytes == 0 ? "" : " of at most " + to_string(max_bytes)) + " bytes are queued";
  if (returned != 0) text += ", " + to_string(returned) + " of them messages that receivers took and returned";
  if (most == 0 || queued < most) {
    text += "; a channel can queue no more bytes than its arena has left, " +
            to_string(parts_.control.arena.pool().free_bytes()) + " of a budget of " +
            to_string(parts_.control.arena.pool().max_bytes());
    const std::string shortage = platform::memory_shortage(kRingStepBytes);
    if (!shortage.empty()) text += "; " + shortage;
  }
  return Error{Code::kFull, text + parts_.ends.if_unattended(End::kReceiving)};
}

Status Sending::wait_until_space(std::uint64_t bytes, std::uint64_t referred_bytes, std::uint64_t unallocated,
                                 bool may_grow, const WaitContext& wait) {
  ChannelHeader& shared = parts_.control.shared;
  Space space = Space::kFull;
  const auto has_space_now = [&] {
    using Depth = RingTail::Depth;
    space = parts_.tail.space_for(bytes, referred_bytes, unallocated, may_grow ? Depth::kAtCounts : Depth::kAtSlots);
    return space == Space::kYes || space == Space::kRelieved || space == Space::kDamaged || space == Space::kShutDown;
  };
  // True if it made space, or found some. Only for a channel that drops messages.
  const auto drop_for_space = [&]() -> Result<bool> {
    for (int failures = 0; failures < kMaxFailedDrops && parts_.control.drops_oldest();) {
      if (has_space_now()) return true;
      memory::poll_for_deaths(parts_.control.arena, wait_policy::kLongPollIntervalNs);
      Status attended = parts_.ends.check_open(End::kReceiving);
      if (!attended) return std::move(attended).error();
      auto dropped = receiving_.drop_oldest(wait);
      if (!dropped) return std::move(dropped).error();
      if (!*dropped) ++failures;
    }
    return false;
  };
  auto has_space = drop_for_space();
  if (!has_space || *has_space) return has_space ? success() : Status(std::move(has_space).error());
  if (parts_.control.ending() == Ending::kQueueRaise) {
    // Otherwise blocked senders would count as receivers for each other.
    auto me = parts_.control.arena.identity();
    if (!me) return std::move(me).error();
    parts_.membership.mark_used(End::kSending, *me);
  }
  const auto places = [&]() -> std::uint64_t {
    if (!has_space_now()) return 0;
    const std::uint64_t most = shared.capacity;
    return most == 0 ? 1 : std::max<std::uint64_t>(most - std::min(parts_.watchers.size(), most), 1);
  };
  if (spinner_.until(places, shared.capacity / 2, wait)) return success();
  SpaceWait waiting(parts_.control, space, wait);
  const auto ready = [&] {
    if (waiting.slept() && !may_grow) return true;  // memory may be free now
    has_space = drop_for_space();
    return !has_space || *has_space || has_space_now();
  };
  parts_.watchers.check_exits(End::kSending);
  Deadlock deadlock(parts_.control, parts_.ends, End::kReceiving, wait);
  const auto before_sleep = [&](bool first) -> Result<bool> {
    if (waiting.lacked() != space && !wait.deadline.passed()) {
      if (waiting.lacked() == Space::kFull) parts_.watchers.leave_space_to_others();
      return true;
    }
    auto recovered = memory::recover_from_deaths(parts_.control.arena, wait_policy::alive_within_ns(!first), wait);
    if (!recovered || (*recovered && has_space_now())) return recovered;
    if (Status attended = parts_.ends.check_open(End::kReceiving); !attended) return std::move(attended).error();
    if (Status dead = parts_.ends.report_dead_peers(End::kReceiving); !dead) {
      if (has_space_now()) return true;  // made by the last receiver, before it died
      return std::move(dead).error();
    }
    if (!wait.deadline.is_immediate() && deadlock.is_proved()) return deadlock.error();
    return false;
  };
  auto came = memory::wait_until(waiting, wait, "space", ready, before_sleep, has_space_now);
  if (!came) {
    if (came.code() == Code::kInterrupted) parts_.watchers.leave_space_to_others();
    return std::move(came).error();
  }
  if (!has_space) return std::move(has_space).error();
  return *came ? success() : still_full();
}

// After `put` has failed, drops the oldest message and puts again. Under the senders' lock, which it releases. Not
// inlined: otherwise every put would clear the memory of a Drop.
[[gnu::noinline]] RingTail::Put Sending::drop_put_and_unlock(std::span<Outgoing> messages, Identity me,
                                                             OwnedBlock& spare, RingTail::Put put) {
  Receiving::Drop drop;
  if (receiving_.try_drop_oldest(drop, me)) put = parts_.tail.put(messages, me, spare);
  parts_.control.arena.unlock(parts_.control.shared.senders_lock);
  receiving_.finish(drop);
  return put;
}

// Puts the first few of `messages` that there is space for, under one lock. With `may_drop`, drops the oldest message
// to make space. If none was put, the caller calls wait_until_space().
Result<Sending::Put> Sending::put_some(std::span<Outgoing> messages, bool may_drop, const WaitContext& wait) {
  ChannelHeader& shared = parts_.control.shared;
  auto me = parts_.control.arena.identity();
  if (!me) return std::move(me).error();
  Status fits = check(messages[0], *me);
  if (!fits) return std::move(fits).error();
  const std::span<Outgoing> sound = messages.first(count_sound(messages, *me));
  OwnedBlock spare;
  for (;;) {
    Status locked = parts_.control.arena.lock(shared.senders_lock, wait);
    if (!locked) return std::move(locked).error();
    RingTail::Put put = parts_.tail.put(sound, *me, spare);
    if (may_drop && (put.space == Space::kFull || put.space == Space::kFullOfBytes)) [[unlikely]] {
      put = drop_put_and_unlock(sound, *me, spare, put);
    } else {
      parts_.control.arena.unlock(shared.senders_lock);
    }
    if (put.space == Space::kYes) {
      for (Outgoing& message : sound.first(put.count)) {
        if (message.block.valid()) message.block.publish();
      }
      parts_.membership.mark_used(End::kSending, *me);
      parts_.acks.note_sent(put.first, put.count);
      parts_.watchers.announce_put(put.count, put.watched);
      // One waiter was woken for several slots, and wakes the next one here.
      if (put.space_left && load_relaxed(shared.space.waiters) != 0) notify(shared.space);
      return put;
    }
    if (put.space == Space::kShutDown) return shut_down_error();
    if (put.space == Space::kDamaged) return parts_.tail.no_ring();
    if (put.grow_to == 0) return put;
    auto grown = parts_.tail.new_segment(put.grow_to, wait);
    if (!grown) {
      // kTimeout: the arena's lock was busy. The caller's deadline does not apply to it.
      const Code code = grown.code();
      const bool later = code == Code::kFull || code == Code::kOutOfSharedMemory || code == Code::kTimeout;
      if (later) return put;
      return std::move(grown).error();
    }
    spare = std::move(*grown);
  }
}

// Puts the first few of `messages`, once there is space. If another sender uses the space first, tries again until the
// deadline, and once after it. The limit also ends the call if damaged words in shared memory contradict each other.
Result<Sending::Put> Sending::put_first(std::span<Outgoing> messages, const WaitContext& wait) {
  Status peers = parts_.ends.check_deaths(End::kReceiving);
  if (!peers) [[unlikely]]
    return std::move(peers).error();
  const int max_late = parts_.control.drops_oldest() ? kMaxLateTurns : 0;
  for (int turn = 0, late = 0;; ++turn) {
    if (turn != 0 && wait.deadline.passed()) ++late;
    // Drops messages only after wait_until_space() has found a receiver.
    auto put = put_some(messages, turn != 0 && parts_.control.drops_oldest(), wait);
    if (!put) {
      parts_.watchers.leave_space_to_others();
      return in_time(std::move(put).error(), Code::kFull);
    }
    if (put->count != 0) return put;
    if (late > max_late) return still_full();
    Status space = wait_until_space(messages[0].size(), messages[0].referred(), 0, put->grow_to == 0, wait);
    if (!space) return in_time(std::move(space).error(), Code::kFull);
  }
}

Result<std::uint64_t> Sending::put(Outgoing& message, const WaitContext& wait) {
  auto put = put_first({&message, 1}, wait);
  if (!put) return std::move(put).error();
  return put->first;
}

Status Sending::put_many(std::span<Outgoing> messages, const WaitContext& wait) {
  std::size_t done = 0;
  while (done < messages.size()) {
    // The number of messages that were put is reported even if there is no memory for an error.
    auto put = or_out_of_memory([&] { return put_first(messages.subspan(done), wait); });
    if (!put) {
      Error error = std::move(put).error();
      error.completed = done;
      return error;
    }
    done += put->count;
  }
  return success();
}

}  // namespace shmtree::channel
