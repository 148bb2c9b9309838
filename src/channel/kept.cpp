// Messages that were received and that this process then had no memory to make anything of.
//
// They become records, as if they had been taken and returned: whoever receives next, in any process, has them. A
// record may need memory of the arena. While there is none the message stays here, in the place that it was received
// into, and the process receives nothing else before it; as the last end here is left it is tried once more.
//
// Until a record's state says "returned" the message is a received one, which goes with its receiver. Two things must
// not take its block for one that nothing keeps, as its hold ends and its record begins:
//   a recovery   it looks at the channel under the receivers' lock, and what it saw counts until it clears `dirty`. Who
//                has that lock by Arena::lock() found `dirty` at 0: a recovery looks later, and sees the record.
//   a releaser   it looks under the arena's lock, at the delivered flag first and the holders next. The flag is set
//                under that lock, too, and the hold ends after it.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "channel/channel.h"
#include "channel/records.h"
#include "platform/atomics.h"

namespace shmtree::channel {

using namespace platform;

namespace {

constexpr int kMostTries = 64;

}  // namespace

void Channel::give_back(std::unique_ptr<Received> received) noexcept {
  if (!received->message.was_received_by(arena_->current_identity())) return;  // a copy, of a child that was forked
  if (return_to_channel(received->message)) return;
  keep(std::move(received));
  settle_wake_fd(End::kReceiving);
  notify_all(header().items);  // other threads of this process may wait
}

// Under the receivers' lock: a free record becomes that of a message that was taken and given back. What it became;
// nothing when the arena's lock is taken.
std::optional<RecordState> Channel::write_returned(Record& record, const Incoming& message) noexcept {
  if (message.in_block() && !arena_->reclaimer().try_set_delivered(message.block_)) return std::nullopt;
  Slot& slot = record.slot();
  store_once(slot.ticket, message.ticket_);
  store_once(slot.block, message.in_block() ? memory::pack(message.block_) : 0);
  store_once(slot.bytes, message.bytes_);
  store_once(slot.sender, message.sender_);
  if (!message.in_block()) std::memcpy(slot.inline_data(), message.inline_data_, message.frame().size());
  const std::uint64_t taken = record_word(RecordState::kTaken, memory::kNobody, message.attempts_);
  const std::uint64_t word = given_back(taken, load_once(header().max_attempts));
  set_record(record, word);
  return state_of_record(word);
}

// False, with the message as it was, when there is no memory for a record or a lock is not to be had.
bool Channel::return_to_channel(Incoming& message) noexcept try {
  const WaitContext at_once{Deadline::immediate()};
  std::optional<RecordState> became;
  for (int tries = 0; !became; ++tries) {
    if (tries == kMostTries || !arena_->reconciler().lock_quietly(header().receivers_lock, at_once)) return false;
    Record* record = free_record();
    if (record != nullptr) became = write_returned(*record, message);
    arena_->unlock(header().receivers_lock);
    if (record == nullptr) {
      if (!add_records(at_once)) return false;
    } else if (!became) {  // until the arena's lock has been free
      if (!arena_->reconciler().lock_arena_quietly(at_once)) return false;
      arena_->reclaimer().unlock();
    }
  }
  message.drop();
  settled(*became);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

void Channel::keep(std::unique_ptr<Received> received) noexcept {
  std::unique_ptr<Received> inherited;  // from a parent: let go of outside the mutex
  const Identity me = arena_->current_identity();
  const std::lock_guard guard(mutex_);
  if (kept_by_.load(std::memory_order_relaxed) != me) {
    inherited = std::move(kept_);
    kept_count_.store(0, std::memory_order_relaxed);
    kept_by_.store(me, std::memory_order_relaxed);
  }
  std::unique_ptr<Received>* place = &kept_;
  while (*place != nullptr && (*place)->message.ticket() < received->message.ticket()) place = &(*place)->next;
  received->next = std::move(*place);
  *place = std::move(received);
  kept_count_.fetch_add(1, std::memory_order_relaxed);
}

std::unique_ptr<Received> Channel::first_kept() noexcept {
  const std::lock_guard guard(mutex_);
  if (kept_here() == 0) return nullptr;
  std::unique_ptr<Received> first = std::move(kept_);
  kept_ = std::move(first->next);
  kept_count_.fetch_sub(1, std::memory_order_relaxed);
  return first;
}

// Whether nothing is kept any more.
bool Channel::return_kept() noexcept {
  while (auto first = first_kept()) {
    if (return_to_channel(first->message)) continue;
    keep(std::move(first));
    return false;
  }
  return true;
}

// The first of what is kept, unless the queue was shut down with all that was in it.
bool Channel::serve_kept(Incoming& out) noexcept {
  while (auto first = first_kept()) {
    if (static_cast<Shutdown>(load_acquire(header().shutdown)) == Shutdown::kDiscarded) continue;
    out = std::move(first->message);
    ++out.attempts_;
    settle_wake_fd(End::kReceiving);
    return true;
  }
  return false;
}

}  // namespace shmtree::channel
