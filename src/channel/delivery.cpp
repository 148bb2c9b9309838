// Messages taken and not yet acknowledged. A record is what keeps such a message; it outlives its taker.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "channel/channel.h"
#include "channel/records.h"
#include "channel/waiting.h"
#include "platform/atomics.h"

namespace shmtree::channel {

using namespace platform;
using memory::BlockKind;

namespace {

Error in_time(Error error) {
  // No memory for a record, or no lock, in time: nothing was received.
  if (error.code == Code::kTimeout || error.code == Code::kFull) error.code = Code::kEmpty;
  return error;
}

Error no_record() {
  return Error{Code::kOutOfSharedMemory, "there is no memory for a record of the message that is to be taken"};
}

}  // namespace

Record* Channel::free_record() noexcept {
  Record* found = nullptr;
  for_each_record([&](Record& record) {
    if (state_of_record(load_acquire(record.state)) == RecordState::kFree) found = &record;
    return found == nullptr;
  });
  return found;
}

// Whether another process has messages that it may yet give back: then the stream is not over.
bool Channel::others_may_return() noexcept {
  const Identity me = arena_->current_identity();
  bool found = false;
  if (load_acquire(header().taken) == 0) return false;
  for_each_record([&](Record& record) {
    const std::uint64_t word = load_acquire(record.state);
    found = state_of_record(word) == RecordState::kTaken && taker_of_record(word) != me;
    return !found;
  });
  return found;
}

// More records, one more than there are, so that the chain stays short. Called without locks; nothing is added when
// another thread or process has done so meanwhile.
Status Channel::add_records(const WaitContext& wait) {
  std::uint64_t total = 0;
  for_each_record([&](Record&) { return ++total != 0; });
  const std::uint64_t count = total == 0 ? kFirstRecords : total + 1;
  auto block = arena_->allocate(records_bytes(count, slot_bytes_), BlockKind::kDeliveries, wait);
  if (!block) return std::move(block).error();
  std::memset(block->data(), 0, records_bytes(count, slot_bytes_));
  auto* added = new (block->data()) RecordsHeader{count, {0}, {}};
  Status locked = arena_->lock(header().receivers_lock, wait);
  if (!locked) return locked;
  if (free_record() != nullptr) {
    arena_->unlock(header().receivers_lock);
    return success();
  }
  store_relaxed(added->next, load_relaxed(header().records));
  store_release(header().records, memory::pack(block->ref()));
  arena_->unlock(header().receivers_lock);
  block->publish();
  return success();
}

// Under the receivers' lock: the oldest returned message.
Record* Channel::oldest_returned() noexcept {
  Record* oldest = nullptr;
  for_each_record([&](Record& record) {
    const bool is_returned = state_of_record(load_acquire(record.state)) == RecordState::kReturned;
    if (is_returned && (oldest == nullptr || record.slot().ticket < oldest->slot().ticket)) oldest = &record;
    return true;
  });
  return oldest;
}

// Under the receivers' lock. A kill in between leaves counts that are off until a reconcile; of them `also_queued` is
// never too low, lest a put find room that is not there.
void Channel::set_record(Record& record, std::uint64_t word) noexcept {
  ChannelHeader& shared = header();
  const RecordState from = state_of_record(load_relaxed(record.state)), to = state_of_record(word);
  const auto count = [](std::atomic<std::uint32_t>& number, int more) {
    if (more != 0) store_relaxed(number, load_relaxed(number) + static_cast<std::uint32_t>(more));
  };
  const int more_returned = (to == RecordState::kReturned) - (from == RecordState::kReturned);
  const std::uint32_t returned = load_relaxed(shared.returned) + static_cast<std::uint32_t>(more_returned);
  if (more_returned > 0) store_relaxed(shared.also_queued, returned);
  store_release(record.state, word);
  count(shared.taken, awaits_ack(to) - awaits_ack(from));
  count(shared.rejected, (to == RecordState::kRejected) - (from == RecordState::kRejected));
  if (more_returned == 0) return;
  const std::uint64_t bytes = load_once(record.slot().bytes), out = load_relaxed(shared.bytes_out);
  store_relaxed(shared.bytes_out, more_returned > 0 ? out - bytes : out + bytes);
  store_relaxed(shared.returned, returned);
  store_relaxed(shared.also_queued, returned);
}

// What was said to be returned is not.
void Channel::forget_returned() noexcept {
  store_relaxed(header().returned, 0u);
  store_relaxed(header().also_queued, 0u);
}

bool Channel::serve_returned(Identity me, Incoming& out, Receipt& receipt) noexcept {
  Record* record = oldest_returned();
  if (record == nullptr) {
    forget_returned();
    return false;
  }
  if (!receive_slot(record->slot(), me, out, receipt)) return false;
  out.attempts_ = attempts_with_this(load_relaxed(record->state));
  set_record(*record, kFreeRecord);
  if (out.in_block()) arena_->reclaimer().set_delivered(out.block(), false);
  return true;
}

Result<Delivery> Channel::take(const WaitContext& wait) {
  ChannelHeader& shared = header();
  for (;;) {
    auto me = arena_->identity();  // each time, as in get_some()
    if (!me) return std::move(me).error();
    const bool shut_down = is_shut_down();  // before the look: what was put before it is still found
    if (kept_here() != 0 && !return_kept()) return no_record();
    if (can_receive()) {
      Status locked = arena_->lock(shared.receivers_lock, wait);
      if (!locked) return in_time(std::move(locked).error());
      Delivery delivery;
      Receipt receipt;
      const Access access = receiving_access();
      const Took took = access == Access::kFree ? take_locked(*me, delivery, receipt) : Took::kNone;
      arena_->unlock(shared.receivers_lock);
      if (access == Access::kShutDown) return discarded(wait);
      settle_receipt(receipt);
      if (took == Took::kOne) {
        mark_used(End::kReceiving, *me);
        delivery.channel_ = shared_from_this();
        received();
        return delivery;
      }
      if (took == Took::kLeft) {
        leave_messages_to_others();  // another process may have what this one lacks
        return unreceived(receipt);
      }
      if (took == Took::kTooMany) {
        mark_used(End::kReceiving, *me);
        Status settled = wait_until_settled(wait);
        if (!settled) return in_time(std::move(settled).error());
      }
      if (took == Took::kNeedsRecord) {
        Status added = add_records(wait);
        if (!added) {
          leave_messages_to_others();
          return in_time(std::move(added).error());
        }
      }
      continue;
    }
    mark_used(End::kReceiving, *me);
    if (shut_down) return shut_down_error();
    Status waited = wait_until_ready(wait);
    if (!waited) {
      settle_wake_fd(End::kReceiving);
      return in_time(std::move(waited).error());
    }
  }
}

std::uint64_t Channel::unsettled() const noexcept {
  const std::uint32_t taken = load_full(header().taken), returned = load_full(header().returned);
  return std::max(taken, returned) - returned;
}

bool Channel::has_too_many_taken() const noexcept {
  const std::uint64_t most = header().max_unsettled;
  return most != 0 && unsettled() >= most;
}

// Until one of those taken is settled. It is for the receivers to do, so no end of the stream is told of here: there
// are messages.
Status Channel::wait_until_settled(const WaitContext& wait) {
  leave_messages_to_others();  // what woke this one may be of use to one who gets
  const auto is_ready = [this] {
    return !has_too_many_taken() || !can_receive() || receiving_access() == Access::kShutDown;
  };
  Status waited = wait_at(header().acked, End::kReceiving, "an acknowledgement", is_ready, wait);
  if (waited || waited.code() != Code::kTimeout) return waited;
  return Error{Code::kEmpty, "no message in time: " + std::to_string(unsettled()) + " of at most " +
                                 std::to_string(header().max_unsettled) +
                                 " are taken and not settled (max_unsettled), and " + std::to_string(size()) +
                                 " more can be received"};
}

// A slot may be written while it is read: what is copied with it goes by one look at its size. The words go one by one,
// for who looks for acknowledgements reads those of a record without the lock.
void Channel::copy_slot(Slot& to, const Slot& from) const noexcept {
  const std::uint64_t block = load_once(from.block), bytes = load_once(from.bytes);
  store_once(to.ticket, load_once(from.ticket));
  store_once(to.block, block);
  store_once(to.bytes, bytes);
  store_once(to.sender, load_once(from.sender));
  if (block == 0) std::memcpy(to.inline_data(), from.inline_data(), std::min(bytes, inline_bytes()));
}

Channel::Took Channel::take_locked(Identity me, Delivery& delivery, Receipt& receipt) noexcept {
  ChannelHeader& shared = header();
  if (has_too_many_taken()) return has_messages() ? Took::kTooMany : Took::kNone;
  Record* record = load_relaxed(shared.returned) != 0 ? oldest_returned() : nullptr;
  if (record != nullptr) {
    if (!receive_slot(record->slot(), me, delivery.message_, receipt)) return Took::kLeft;
    delivery.word_ = record_word(RecordState::kTaken, me, attempts_with_this(load_relaxed(record->state)));
    set_record(*record, delivery.word_);
  } else {
    if (load_relaxed(shared.returned) != 0) forget_returned();
    const Slot* slot = first_slot(receipt);
    if (slot == nullptr) return receipt.damaged ? Took::kLeft : Took::kNone;
    record = free_record();
    if (record == nullptr) return Took::kNeedsRecord;
    copy_slot(record->slot(), *slot);
    if (!receive_slot(record->slot(), me, delivery.message_, receipt)) return Took::kLeft;
    if (delivery.message_.in_block()) arena_->reclaimer().set_delivered(delivery.message_.block(), true);
    delivery.word_ = record_word(RecordState::kTaken, me, 1);
    set_record(*record, delivery.word_);
    store_relaxed(shared.bytes_out, load_relaxed(shared.bytes_out) + record->slot().bytes);
    store_release(shared.head, load_relaxed(shared.head) + 1);
  }
  delivery.message_.attempts_ = attempts_of_record(delivery.word_);
  delivery.record_ = record;
  return Took::kOne;
}

Delivery& Delivery::operator=(Delivery&& other) noexcept {
  if (this != &other) {
    give_up();
    channel_ = std::move(other.channel_);
    other.channel_.reset();
    record_ = other.record_;
    word_ = other.word_;
    message_ = std::move(other.message_);
  }
  return *this;
}

Delivery::~Delivery() {
  give_up();
}

// Without the lock, should it not be had: the store is the truth, and the counts are left to a reconcile.
void Delivery::give_up() noexcept {
  if (settled()) return;
  try {
    if (nack(WaitContext{Deadline::immediate()}).ok() || settled()) return;
  } catch (const std::bad_alloc&) {
    if (settled()) return;
  }
  std::uint64_t word = word_;
  if (compare_swap(record_->state, word, word_after(Settling::kNack))) channel_->arena_->participants().mark_dirty();
  channel_.reset();
}

std::uint64_t Delivery::word_after(Settling how) const noexcept {
  switch (how) {
    case Settling::kAck: return kFreeRecord;
    case Settling::kRequeue: return record_word(RecordState::kReturned, memory::kNobody, 0);
    case Settling::kNack: break;
  }
  return given_back(word_, load_once(channel_->header().max_attempts));
}

bool Delivery::is_of_this_process() const noexcept {
  const Arena* arena = settled() ? message_.arena_.get() : channel_->arena_.get();
  return arena == nullptr || arena->current_identity() == taker_of_record(word_);
}

Status Delivery::settle(Settling how, const WaitContext& wait) {
  if (settled()) return Error{Code::kInvalid, "this delivery was acknowledged or returned before"};
  Arena& arena = *channel_->arena_;
  ChannelHeader& shared = channel_->header();
  if (!is_of_this_process()) {
    channel_.reset();
    return Error{Code::kInvalid, "this delivery belongs to the process that took it, not to a forked child"};
  }
  Status locked = arena.lock(shared.receivers_lock, wait);
  if (!locked) return locked;
  const bool ours = load_acquire(record_->state) == word_ && record_->slot().ticket == message_.ticket();
  const std::uint64_t word = word_after(how);
  if (ours) {
    channel_->set_record(*record_, word);
    if (how == Settling::kAck && message_.in_block()) arena.reclaimer().set_delivered(message_.block(), false);
  }
  arena.unlock(shared.receivers_lock);
  const std::shared_ptr<Channel> channel = std::move(channel_);
  channel_.reset();
  if (!ours) return Error{Code::kInvalid, "this delivery is no longer this process's"};
  if (how == Settling::kAck && message_.in_block())
    arena.reclaimer().collect(message_.block());  // its views hold it themselves
  channel->settled(state_of_record(word));
  return success();
}

// After unlocking: wakes those for whom it makes a difference what became of a message.
void Channel::settled(RecordState became) noexcept {
  notify_all(header().acked);
  if (became == RecordState::kReturned) {
    settle_wake_fd(End::kSending);  // there may be no room any more
    wake_watchers(End::kReceiving);
    notify(header().items);
  } else if (load_relaxed(header().taken) == 0 && !anyone_at(End::kSending)) {
    wake_all();  // it is over now
  }
}

}  // namespace shmtree::channel
