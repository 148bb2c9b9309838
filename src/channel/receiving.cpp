#include "channel/receiving.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "channel/peer_wait.h"
#include "memory/arena.h"
#include "memory/held_locks.h"
#include "platform/dcheck.h"

namespace shmtree::channel {

using namespace platform;

// Returns true if it received a message.
Result<bool> Receiving::get_now(Incoming& out, Identity me, const WaitContext& wait) {
  ChannelHeader& shared = control_.shared;
  if (returns_.has_unreturned() && returns_.receive_unreturned(out)) [[unlikely]]
    return true;
  // Reads the senders' cache line only when all messages that are known to have been put are received.
  if (load_relaxed(shared.head) == load_relaxed(shared.cached_tail) && !head_.has_messages()) return false;
  Status locked = control_.arena.lock(shared.receivers_lock, wait);
  if (!locked) return in_time(std::move(locked).error(), Code::kEmpty);
  Receipt receipt;
  const Front::Access access = front_.access();
  const bool got = access == Front::Access::kFree && front_.receive_next(out, me, receipt);
  control_.arena.unlock(shared.receivers_lock);
  if (access != Front::Access::kFree) [[unlikely]] {
    if (access == Front::Access::kShutDown) return front_.discarded(wait);
    return false;
  }
  receipt.release_spent(control_.arena);
  membership_.mark_used(End::kReceiving, me);
  if (got) {
    watchers_.announce_received();
  } else if (receipt.is_left()) {
    return receipt.error(control_.arena);
  }
  return got;
}

Status Receiving::get(Incoming& out, const WaitContext& wait) {
  return receive_by([&](Identity me, const WaitContext& by) { return get_now(out, me, by); }, wait);
}

template <class Ready>
Status Receiving::wait_for_messages(const Ready& is_ready, const WaitContext& wait) const {
  const auto reason = control_.sleep_at(End::kReceiving, memory::WaitFor::kMessage);
  watchers_.check_exits(End::kReceiving);
  return wait_for_peers(control_, ends_, {control_.shared.items, reason, End::kSending, "a message"}, is_ready, wait);
}

Status Receiving::poll(const WaitContext& wait) {
  auto me = control_.arena.identity();
  if (!me) return std::move(me).error();
  membership_.mark_used(End::kReceiving, *me);
  const auto is_ready = [this] { return watchers_.ready(); };
  Status waited = wait_for_messages(is_ready, wait);
  watchers_.leave_messages_to_others();
  if (waited || waited.code() == Code::kClosed || waited.code() == Code::kPeerDied) return success();
  return in_time(std::move(waited).error(), Code::kEmpty);
}

Status Receiving::wait_until_ready(const WaitContext& wait) {
  ChannelHeader& shared = control_.shared;
  const auto is_ready = [this] { return watchers_.can_receive(); };
  const auto messages = [&] { return is_ready() ? std::max<std::uint64_t>(watchers_.size(), 1) : 0; };
  if (spinner_.until(messages, shared.capacity == 0 ? ~std::uint64_t{0} : shared.capacity / 2, wait)) {
    return success();
  }
  Status waited = wait_for_messages(is_ready, wait);
  if (waited) return waited;
  // An interrupted call may have been woken for a message that it leaves.
  if (waited.code() == Code::kInterrupted) watchers_.leave_messages_to_others();
  watchers_.refresh_fd(End::kReceiving);  // may be readable for a message that was received
  return in_time(std::move(waited).error(), Code::kEmpty);
}

// --- Deliveries

Result<Delivery> Deliveries::take(std::shared_ptr<Deliveries> self, const WaitContext& wait) {
  poll_for_dead_takers(wait);
  Delivery delivery;
  Status taken =
      receiving_.receive_by([&](Identity me, const WaitContext& by) { return take_now(me, delivery, by); }, wait);
  if (!taken) return std::move(taken).error();
  delivery.of_ = std::move(self);
  watchers_.announce_received();
  return delivery;
}

// Waiting calls detect deaths. If the channel is never empty no call waits, but messages of dead takers must still be
// returned.
void Deliveries::poll_for_dead_takers(const WaitContext& wait) const noexcept {
  if (load_relaxed(control_.shared.taken) == 0) return;
  memory::poll_for_deaths(control_.arena, wait_policy::kLongPollIntervalNs,
                          wait.hooks);  // the next take checks again
}

// Returns true if it took a message.
Result<bool> Deliveries::take_now(Identity me, Delivery& delivery, const WaitContext& wait) {
  for (;;) {
    if (returns_.has_unreturned()) [[unlikely]] {
      Status returned = returns_.give_back_unreturned(wait);
      if (!returned) return in_time(std::move(returned).error(), Code::kEmpty);
    }
    if (!watchers_.can_receive()) return false;
    Status tried = try_take(me, delivery, wait);
    if (!tried) return std::move(tried).error();
    if (delivery.record_ != nullptr) return true;
    auto again = control_.arena.identity();  // waits may run code that forks, and a child may have no identity
    if (!again) return std::move(again).error();
    me = *again;
  }
}

// Tries to take a message, unless this process is no longer `me`. If it takes none, the caller tries again: this call
// has waited for what was in the way, or has added the missing record.
Status Deliveries::try_take(Identity me, Delivery& delivery, const WaitContext& wait) {
  Status done = control_.arena.lock(control_.shared.receivers_lock, wait);
  if (!done) return in_time(std::move(done).error(), Code::kEmpty);
  Receipt receipt;
  const Front::Access access = front_.access();
  const bool is_me = control_.arena.current_identity() == me;  // false in a child that was forked during the wait
  const bool may_take = access == Front::Access::kFree && is_me;
  const TakeResult took = may_take ? take_locked(me, delivery, receipt) : TakeResult::kNone;
  control_.arena.unlock(control_.shared.receivers_lock);
  if (access == Front::Access::kShutDown) return front_.discarded(wait);
  receipt.release_spent(control_.arena);
  if (took == TakeResult::kOne || took == TakeResult::kTooMany) membership_.mark_used(End::kReceiving, me);
  if (took == TakeResult::kTooMany) done = wait_until_settled(wait);
  if (took == TakeResult::kNeedsRecord) done = records_.add(wait);
  if (took == TakeResult::kLeft) done = receipt.error(control_.arena);
  return done ? std::move(done) : in_time(std::move(done).error(), Code::kEmpty);
}

// Waits until one of the taken messages is settled. Only receivers can settle one, and there are messages, so the end
// of the stream is not reported here.
Status Deliveries::wait_until_settled(const WaitContext& wait) {
  watchers_.leave_messages_to_others();  // another receiver may use what woke this call
  const auto is_ready = [this] {
    return !records_.has_too_many_taken() || !watchers_.can_receive() || front_.access() == Front::Access::kShutDown;
  };
  const auto reason = control_.sleep_for(memory::WaitFor::kAcks);
  Status waited = wait_for_peers(
      control_, ends_, {control_.shared.acked, reason, End::kReceiving, "an acknowledgement"}, is_ready, wait);
  if (waited || waited.code() != Code::kTimeout) return waited;
  return Error{Code::kEmpty, "no message within the timeout: " + std::to_string(records_.unacked()) + " of at most " +
                                 std::to_string(control_.shared.max_unacked) +
                                 " messages are unacked (max_unacked), and " + std::to_string(watchers_.size()) +
                                 " more are queued: ack() or nack() one first"};
}

// Another process may write the slot meanwhile, so its size is read once. Words are copied one by one, since threads
// that check for acks read the words of a record without the lock.
void Deliveries::copy_slot(RingSlot& to, const RingSlot& from) const noexcept {
  SHMTREE_DCHECK(&to != &from);
  const std::uint64_t block = load_once(from.block), bytes = load_once(from.bytes);
  store_once(to.ticket, load_once(from.ticket));
  store_once(to.block, block);
  store_once(to.bytes, bytes);
  store_once(to.sender, load_once(from.sender));
  if (block == 0) std::memcpy(to.inline_data(), from.inline_data(), std::min(bytes, control_.inline_bytes()));
}

// Assigns the record, and its pinned message, to the delivery.
void Deliveries::fill_delivery(Record& record, std::uint64_t word, Delivery& delivery) noexcept {
  SHMTREE_DCHECK(delivery.record_ == nullptr);
  delivery.record_ = &record;
  delivery.word_ = word;
  records_.set(record, word);
}

Deliveries::TakeResult Deliveries::take_locked(Identity me, Delivery& delivery, Receipt& receipt) noexcept {
  SHMTREE_DCHECK(delivery.settled() && memory::HeldLocks::contains(control_.shared.receivers_lock));
  if (records_.has_too_many_taken()) return head_.has_messages() ? TakeResult::kTooMany : TakeResult::kNone;
  Record* const record = records_.first_returned();
  if (record == nullptr) return take_from_ring(me, delivery, receipt);
  const std::uint32_t attempts = attempts_with_this(load_relaxed(record->state));
  if (!head_.hold_again(*record, me, attempts, delivery.message_, receipt)) return TakeResult::kLeft;
  fill_delivery(*record, record_word(RecordState::kTaken, me, attempts), delivery);
  return TakeResult::kOne;
}

Deliveries::TakeResult Deliveries::take_from_ring(Identity me, Delivery& delivery, Receipt& receipt) noexcept {
  const RingSlot* slot = head_.first(receipt);
  if (slot == nullptr) return receipt.damaged ? TakeResult::kLeft : TakeResult::kNone;
  Record* record = records_.find_free();
  if (record == nullptr) return TakeResult::kNeedsRecord;
  copy_slot(record->slot(), *slot);
  record->set_failed_builds(0);
  Incoming& message = delivery.message_;
  if (!head_.hold(record->slot(), me, 1, message, receipt)) return TakeResult::kLeft;
  if (message.in_block()) control_.arena.reclaimer().set_delivered(message.block(), true);
  fill_delivery(*record, record_word(RecordState::kTaken, me, 1), delivery);
  head_.advance(control_.counted_bytes(record->slot()));
  return TakeResult::kOne;
}

// Collects matching messages, as many as `found` has capacity for. Returns true if there may be more. Under the
// receivers' lock.
bool Deliveries::collect(std::vector<Delivery>& found, const Adopting& which, Receipt& receipt) noexcept {
  SHMTREE_DCHECK(memory::HeldLocks::contains(control_.shared.receivers_lock));
  std::size_t left = std::min(found.capacity() - found.size(), kMaxAtOnce);
  for_each_record(control_, [&](Record& record) {
    const std::uint64_t word = load_acquire(record.state);
    if (!which.is(word)) return true;
    if (left == 0) return false;
    Delivery& delivery = found.emplace_back();
    const std::uint32_t attempts = attempts_of_record(word);
    if (!head_.hold_again(record, which.me, attempts, delivery.message_, receipt)) {
      found.pop_back();
      return false;
    }
    fill_delivery(record, record_word(which.state, which.me, attempts), delivery);
    --left;
    return true;
  });
  return left == 0 && found.size() != found.capacity();
}

Result<std::vector<Delivery>> Deliveries::adopt(const std::shared_ptr<Deliveries>& self, RecordState state,
                                                Identity from, const WaitContext& wait) {
  auto me = control_.arena.identity();
  if (!me) return std::move(me).error();
  const Adopting which{state, from, *me};
  std::size_t count = 0;
  for_each_record(control_, [&](Record& record) {
    count += which.is(load_acquire(record.state));
    return true;
  });
  std::vector<Delivery> found;
  found.reserve(count);
  for (bool more = count != 0; more;) {
    Status locked = control_.arena.lock(control_.shared.receivers_lock, wait);
    if (!locked) return std::move(locked).error();
    Receipt receipt;
    const std::size_t before = found.size();
    more = collect(found, which, receipt);
    control_.arena.unlock(control_.shared.receivers_lock);
    for (std::size_t i = before; i < found.size(); ++i) found[i].of_ = self;
    if (receipt.starved) return receipt.error(control_.arena);
  }
  std::sort(found.begin(), found.end(),
            [](Delivery& a, Delivery& b) { return a.message().ticket() < b.message().ticket(); });
  return found;
}

// Recovers from deaths: a process that has just died may have used the last attempt, or left messages to its successor.
Status Deliveries::recover(const WaitContext& wait) {
  if (!control_.arena.participants().check(0)) return success();
  return control_.arena.reconcile(wait);
}

Result<std::vector<Delivery>> Deliveries::dead_letters(const std::shared_ptr<Deliveries>& self,
                                                       const WaitContext& wait) {
  Status given_up = returns_.reject_given_up(wait);
  if (!given_up) return std::move(given_up).error();
  Status repaired = recover(wait);
  if (!repaired) return std::move(repaired).error();
  return adopt(self, RecordState::kRejected, memory::kNoIdentity, wait);
}

Result<std::vector<Delivery>> Deliveries::inherited(const std::shared_ptr<Deliveries>& self, const WaitContext& wait) {
  Status repaired = recover(wait);
  if (!repaired) return std::move(repaired).error();
  const Identity successor = load_acquire(control_.shared.successor);
  if (successor == memory::kNoIdentity || successor == control_.arena.current_identity())
    return std::vector<Delivery>();
  return adopt(self, RecordState::kTaken, successor, wait);
}

Status Deliveries::leave_to_successor() {
  auto me = control_.arena.identity();
  if (!me) return std::move(me).error();
  store_release(control_.shared.predecessor, *me);
  return success();
}

Status Deliveries::become_successor() {
  auto me = control_.arena.identity();
  if (!me) return std::move(me).error();
  store_release(control_.shared.successor, *me);
  return success();
}

Delivery& Delivery::operator=(Delivery&& other) noexcept {
  if (this != &other) {
    give_up();
    of_ = std::exchange(other.of_, nullptr);
    record_ = other.record_;
    word_ = other.word_;
    message_ = std::move(other.message_);
  }
  return *this;
}

// Settles without the lock if the lock is not free soon. The record is primary, and a reconcile corrects the counts. A
// destructor must not wait longer, since its thread may hold Python's GIL.
void Delivery::give_up() noexcept {
  if (settled()) return;
  if (!is_of_this_process()) {
    of_.reset();
    return;
  }
  const Control& control = of_->control_;
  if (control.arena.reconciler().lock_briefly(control.shared.receivers_lock)) {
    settle_locked(Settling::kNack);
    return;
  }
  std::uint64_t word = word_;
  if (load_acquire(record_->state) == word) count_builds(Settling::kNack);  // other processes do not change our record
  if (compare_swap(record_->state, word, word_after(Settling::kNack))) {
    memory::request_recovery(control.arena.header());
    // The waiters find the request, run the recovery, and check again whether there is a message.
    notify_all(control.shared.items);
    notify_all(control.shared.acked);
    Watchers::send_wakes(control, End::kReceiving);
  }
  of_.reset();
}

std::uint64_t Delivery::word_after(Settling how) const noexcept {
  SHMTREE_DCHECK(!settled() && record_ != nullptr);
  switch (how) {
    case Settling::kAck: return kFreeRecord;
    case Settling::kRequeue:
      return of_->control_.unless_discarded(record_word(RecordState::kReturned, memory::kNoIdentity, 0));
    case Settling::kNack: break;
  }
  const std::uint32_t max_attempts = load_once(of_->control_.shared.max_attempts);
  return of_->control_.unless_discarded(given_back(word_, max_attempts, message_.failed_builds()));
}

// Call this before the state is stored. A crash in between leaves a taken record that counts the failed build.
void Delivery::count_builds(Settling how) noexcept {
  if (how == Settling::kNack) record_->set_failed_builds(message_.failed_builds());
  if (how == Settling::kRequeue) record_->set_failed_builds(0);
}

bool Delivery::is_of_this_process() const noexcept {
  const Arena* arena = settled() ? message_.held_in() : &of_->control_.arena;
  return arena == nullptr || arena->current_identity() == taker_of_record(word_);
}

Status Delivery::settle(Settling how, const WaitContext& wait) {
  if (settled()) return Error{Code::kInvalid, "this delivery was already acknowledged or returned"};
  Arena& arena = of_->control_.arena;
  ChannelHeader& shared = of_->control_.shared;
  if (!is_of_this_process()) {
    of_.reset();
    return Error{Code::kInvalid, "this delivery belongs to the process that took it, not to a forked child"};
  }
  Status locked = arena.lock(shared.receivers_lock, wait);
  if (!locked) return locked;
  if (!settle_locked(how)) return Error{Code::kInvalid, "this delivery no longer belongs to this process"};
  return success();
}

// Releases the lock. False if the record no longer belongs to this delivery.
bool Delivery::settle_locked(Settling how) noexcept {
  SHMTREE_DCHECK(!settled() && memory::HeldLocks::contains(of_->control_.shared.receivers_lock));
  Arena& arena = of_->control_.arena;
  const bool ours = load_acquire(record_->state) == word_ && record_->slot().ticket == message_.ticket();
  const std::uint64_t word = word_after(how);
  const bool is_spent_block = state_of_record(word) == RecordState::kFree && message_.in_block();
  if (ours) {
    count_builds(how);
    of_->records_.set(*record_, word);
    const bool is_dropped = how == Settling::kAck && state_of_record(word_) == RecordState::kRejected;
    if (is_dropped) add(of_->control_.shared.tasks_done, std::uint64_t{1});  // the record no longer counts it
    if (is_spent_block) arena.reclaimer().set_delivered(message_.block(), false);
  }
  arena.unlock(of_->control_.shared.receivers_lock);
  const std::shared_ptr<Deliveries> of = std::exchange(of_, nullptr);
  if (!ours) return false;
  if (is_spent_block) arena.reclaimer().collect(message_.block());  // views of it have their own pins
  of->watchers_.announce_settled(state_of_record(word));
  return true;
}

}  // namespace shmtree::channel
