#include "channel/sending.h"

#include <algorithm>
#include <string>

#include "channel/peer_wait.h"
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

// True for space, and for what a wait would not change.
constexpr bool ends_wait(Space space) noexcept {
  return space == Space::kYes || space == Space::kRelieved || space == Space::kDamaged || space == Space::kShutDown;
}

}  // namespace

// Returns an error for a message that could never fit.
Status Sending::refuse_at_once(std::uint64_t bytes, std::uint64_t referred_bytes) const {
  const std::uint64_t most = control_.shared.max_bytes, budget = control_.arena.pool().max_bytes();
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
    message.referred_bytes = control_.arena.blocks().referred_bytes(message.block.ref());
  } else if (bytes > control_.inline_bytes()) {
    return Error{Code::kInvalid, "a frame of " + to_string(bytes) + " bytes is too large to go inline"};
  }
  return refuse_at_once(bytes, message.referred());
}

// Returns how many messages of a batch can be put together. A message that would be refused ends the batch, and is
// refused once it is the first.
std::size_t Sending::count_sound(std::span<Outgoing> messages, Identity me) const {
  std::size_t sound = 1;
  while (sound < std::min(messages.size(), kMaxAtOnce) && (is_small(messages[sound]) || check(messages[sound], me)))
    ++sound;
  return sound;
}

// One call that waits until RingTail::space_for() finds space. It sleeps at the event of the resource that the last
// check found lacking: a slot, bytes of the channel, or memory of the arena. Between arm() and sleep() a check may find
// another one lacking; then the call arms again.
class Sending::SpaceWait {
 public:
  SpaceWait(Sending& of, const Need& need, const WaitContext& wait) noexcept
      : of_(of),
        need_(need),
        wait_(wait),
        slot_(shared().space, of.control_.sleep_at(End::kSending, WaitFor::kSpace), wait),
        bytes_(shared().freed_bytes, of.control_.sleep_at(End::kSending, WaitFor::kSpace), wait),
        memory_(of.control_.arena.header().space, of.control_.sleep_at(End::kSending, WaitFor::kMemory), wait),
        peers_(of.control_, of.ends_, End::kReceiving, wait) {}

  Status wait() {
    auto has_space = drop_for_space();
    if (!has_space) return std::move(has_space).error();
    if (*has_space) return success();
    if (of_.control_.ending() == Ending::kQueueRaise) {
      // Otherwise blocked senders would count as receivers for each other.
      auto me = of_.control_.arena.identity();
      if (!me) return std::move(me).error();
      of_.membership_.mark_used(End::kSending, *me);
    }
    if (of_.spinner_.until([this] { return free_slots(); }, shared().capacity / 2, wait_)) return success();
    of_.watchers_.check_exits(End::kSending);
    auto came = memory::wait_until(
        *this, wait_, "space", [this] { return is_ready(); }, [this](bool first) { return before_sleep(first); },
        [this] { return this->has_space(); });
    if (!came) {
      if (came.code() == Code::kInterrupted) of_.watchers_.leave_space_to_others();
      return std::move(came).error();
    }
    if (!drop_failed_) return std::move(drop_failed_).error();
    return *came ? success() : of_.still_full();
  }

  // The functions of an EventWait.
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

 private:
  ChannelHeader& shared() const noexcept { return of_.control_.shared; }
  EventWait& waiting() noexcept {
    return lacked_ == Space::kFull ? slot_ : lacked_ == Space::kFullOfBytes ? bytes_ : memory_;
  }
  bool has_space() noexcept {
    space_ = of_.space_for(need_);
    return ends_wait(space_);
  }
  // Returns 0 if there is no space.
  std::uint64_t free_slots() noexcept {
    if (!has_space()) return 0;
    const std::uint64_t most = shared().capacity;
    return most == 0 ? 1 : std::max<std::uint64_t>(most - std::min(of_.watchers_.size(), most), 1);
  }
  // Drops messages until there is space. Returns true if there is. Only for a channel that drops messages.
  Result<bool> drop_for_space() {
    for (int failures = 0; failures < kMaxFailedDrops && of_.control_.drops_oldest();) {
      if (has_space()) return true;
      memory::poll_for_deaths(of_.control_.arena, wait_policy::kLongPollIntervalNs);
      Status attended = of_.ends_.check_open(End::kReceiving);
      if (!attended) return std::move(attended).error();
      auto dropped = of_.drop_oldest(wait_);
      if (!dropped) return std::move(dropped).error();
      if (!*dropped) ++failures;
    }
    return false;
  }
  bool is_ready() {
    if (slept_ && !need_.may_grow) return true;  // memory may be free now
    auto made = drop_for_space();
    if (!made) drop_failed_ = std::move(made).error();
    return !drop_failed_ || *made || has_space();
  }
  Result<bool> before_sleep(bool first) {
    if (lacked_ != space_ && !wait_.deadline.passed()) {
      if (lacked_ == Space::kFull) of_.watchers_.leave_space_to_others();
      return true;
    }
    return peers_.before_sleep(first, [this] { return has_space(); });
  }

  Sending& of_;
  const Need need_;
  const WaitContext& wait_;
  Space space_ = Space::kFull;   // found by the last check
  Space lacked_ = Space::kFull;  // the resource that the armed event stands for
  bool slept_ = false;
  Status drop_failed_ = success();
  EventWait slot_, bytes_, memory_;
  PeerCheck peers_;
};

Status Sending::wait_for_space(std::uint64_t bytes, const WaitContext& wait) {
  Status fits = refuse_at_once(bytes, 0);
  if (!fits) return fits;
  const Need need{.bytes = bytes, .unallocated = bytes > control_.inline_bytes() ? bytes : 0};
  // A queue that reports deaths needs to know its senders before they wait for memory.
  const bool may_go_on = control_.ending() != Ending::kQueueRaise && ends_wait(space_for(need));
  Status space = may_go_on ? success() : SpaceWait(*this, need, wait).wait();
  watchers_.leave_space_to_others();                // writing the message may take long
  if (!space) watchers_.refresh_fd(End::kSending);  // may be readable for space that is used
  return space ? std::move(space) : in_time(std::move(space).error(), Code::kFull);
}

Result<OwnedBlock> Sending::reserve(std::uint64_t bytes, const WaitContext& wait) {
  Status space = wait_for_space(bytes, wait);
  if (!space) return std::move(space).error();
  auto block = control_.arena.allocate(bytes, memory::BlockKind::kMessage, wait);
  if (!block) return in_time(std::move(block).error(), Code::kFull);
  return block;
}

Status Sending::check_receivers() {
  auto me = control_.arena.identity();
  if (!me) return std::move(me).error();
  membership_.mark_used(End::kSending, *me);
  const Ends& ends = ends_;
  const bool must_report = ends.has_killed_members(End::kReceiving) || !membership_.is_member(End::kReceiving, *me);
  return must_report ? ends.check_open(End::kReceiving) : success();
}

Status Sending::wait_for_receivers(std::uint64_t count, const WaitContext& wait) {
  auto me = control_.arena.identity();
  if (!me) return std::move(me).error();
  membership_.mark_used(End::kSending, *me);
  memory::poll_for_deaths(control_.arena, 0);
  const auto attached = [&] { return ends_.attached(End::kReceiving); };
  const auto are_attached = [&] { return attached() >= count; };
  const auto recover = [&](bool first) {
    return memory::recover_from_deaths(control_.arena, wait_policy::alive_within_ns(!first), wait);
  };
  // Observers have no word for this sleep.
  EventWait waiting(control_.shared.acked, control_.sleep_for(WaitFor::kUnsaid), wait);
  auto came = memory::wait_until(waiting, wait, "receivers", are_attached, recover, are_attached);
  if (!came) return std::move(came).error();
  if (*came) return success();
  return Error{Code::kTimeout,
               to_string(attached()) + " of " + to_string(count) + " receivers were attached within the timeout"};
}

Error Sending::still_full() const {
  const ChannelHeader& shared = control_.shared;
  const std::uint64_t queued = watchers_.size(), most = shared.capacity, max_bytes = shared.max_bytes;
  const std::uint32_t returned = load_acquire(shared.returned);
  std::string text = "no space within the timeout: " + to_string(queued) +
                     (most == 0 ? "" : " of at most " + to_string(most)) + " messages and " +
                     to_string(control_.queued_bytes()) +
                     (max_bytes == 0 ? "" : " of at most " + to_string(max_bytes)) + " bytes are queued";
  if (returned != 0) text += ", " + to_string(returned) + " of them messages that receivers took and returned";
  if (most == 0 || queued < most) {
    text += "; a channel can queue no more bytes than its arena has left, " +
            to_string(control_.arena.pool().free_bytes()) + " of a budget of " +
            to_string(control_.arena.pool().max_bytes());
    const std::string shortage = platform::memory_shortage(kRingStepBytes);
    if (!shortage.empty()) text += "; " + shortage;
  }
  return Error{Code::kFull, text + ends_.if_unattended(End::kReceiving)};
}

// Under the receivers' lock.
void Sending::drop_next(Drop& drop, Identity me) noexcept {
  SHMTREE_DCHECK(!drop.dropped);
  ChannelHeader& shared = control_.shared;
  drop.dropped = front_.access() == Front::Access::kFree && front_.receive_next(drop.message, me, drop.receipt);
  if (drop.dropped) store_relaxed(shared.dropped, load_relaxed(shared.dropped) + 1);
}

void Sending::finish(Drop& drop) noexcept {
  drop.receipt.release_spent(control_.arena);
  drop.message.drop();
  if (drop.dropped) watchers_.announce_received();
}

bool Sending::try_drop_oldest(Drop& drop, Identity me) noexcept {
  memory::RobustLock lock(control_.shared.receivers_lock, control_.arena.participants());
  if (!lock.try_lock_as(me)) return false;
  // A dead process may have left the guarded words inconsistent, and their recovery takes the senders' lock as well.
  if (!memory::needs_recovery(control_.arena.header())) drop_next(drop, me);
  lock.unlock();
  return drop.dropped;
}

Result<bool> Sending::drop_oldest(const WaitContext& wait) {
  auto me = control_.arena.identity();
  if (!me) return std::move(me).error();
  ChannelHeader& shared = control_.shared;
  Status locked = control_.arena.lock(shared.receivers_lock, wait);
  if (!locked) return std::move(locked).error();
  Drop drop;
  drop_next(drop, *me);
  control_.arena.unlock(shared.receivers_lock);
  finish(drop);
  return drop.dropped;
}

// After `put` has failed, drops the oldest message and puts again. Under the senders' lock, which it releases. Not
// inlined: otherwise every put would clear the memory of a Drop.
[[gnu::noinline]] RingTail::Put Sending::drop_put_and_unlock(std::span<Outgoing> messages, Identity me,
                                                             OwnedBlock& spare, RingTail::Put put) {
  Drop drop;
  if (try_drop_oldest(drop, me)) put = tail_.put(messages, me, spare);
  control_.arena.unlock(control_.shared.senders_lock);
  finish(drop);
  return put;
}

// Puts the first few of `messages` that there is space for, under one lock. With `may_drop`, drops the oldest message
// to make space. If none was put, the caller waits for space.
Result<Sending::Put> Sending::put_some(std::span<Outgoing> messages, bool may_drop, const WaitContext& wait) {
  ChannelHeader& shared = control_.shared;
  auto me = control_.arena.identity();
  if (!me) return std::move(me).error();
  if (!is_small(messages[0])) {
    Status fits = check(messages[0], *me);
    if (!fits) return std::move(fits).error();
  }
  const std::span<Outgoing> sound = messages.first(count_sound(messages, *me));
  OwnedBlock spare;
  for (;;) {
    Status locked = control_.arena.lock(shared.senders_lock, wait);
    if (!locked) return std::move(locked).error();
    Put put = tail_.put(sound, *me, spare);
    if (may_drop && (put.space == Space::kFull || put.space == Space::kFullOfBytes)) [[unlikely]] {
      put = drop_put_and_unlock(sound, *me, spare, put);
    } else {
      control_.arena.unlock(shared.senders_lock);
    }
    if (put.space == Space::kYes) {
      for (Outgoing& message : sound.first(put.count)) {
        if (message.block.valid()) message.block.publish();
      }
      membership_.mark_used(End::kSending, *me);
      watchers_.announce_put(put.count, put.watched);
      // One waiter was woken for several slots, and wakes the next one here.
      if (put.space_left && load_relaxed(shared.space.waiters) != 0) notify(shared.space);
      return put;
    }
    if (put.space == Space::kShutDown) return shut_down_error();
    if (put.space == Space::kDamaged) return tail_.no_ring();
    if (put.grow_to == 0) return put;
    auto grown = tail_.new_segment(put.grow_to, wait);
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
  Status peers = ends_.check_deaths(End::kReceiving);
  if (!peers) [[unlikely]]
    return std::move(peers).error();
  const int max_late = control_.drops_oldest() ? kMaxLateTurns : 0;
  for (int turn = 0, late = 0;; ++turn) {
    if (turn != 0 && wait.deadline.passed()) ++late;
    // Drops messages only after a wait has found a receiver.
    auto put = put_some(messages, turn != 0 && control_.drops_oldest(), wait);
    if (!put) {
      watchers_.leave_space_to_others();
      return in_time(std::move(put).error(), Code::kFull);
    }
    if (put->count != 0) return put;
    if (late > max_late) return still_full();
    const bool may_grow = put->grow_to == 0;
    const Need need{.bytes = messages[0].size(), .referred_bytes = messages[0].referred(), .may_grow = may_grow};
    Status space = SpaceWait(*this, need, wait).wait();
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
