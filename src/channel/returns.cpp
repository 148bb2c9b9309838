#include "channel/returns.h"

#include <new>
#include <utility>

#include "memory/held_locks.h"
#include "platform/dcheck.h"

namespace shmtree::channel {

using namespace platform;

void Returns::give_back(std::unique_ptr<Received> received) noexcept {
  SHMTREE_DCHECK(received != nullptr);
  if (!received->message.was_received_by(control_.arena.current_identity())) return;  // a copy in a forked child
  if (give_back_briefly(received->message)) return;
  const Kind kind = is_given_up(received->message) ? Kind::kGivenUp : Kind::kReceivable;
  keep(std::move(received), kind);
}

void Returns::keep(std::unique_ptr<Received> received, Kind kind) noexcept {
  unreturned_.add(std::move(received), kind);
  if (kind == Kind::kGivenUp) return;
  watchers_.refresh_fd(End::kReceiving);
  Watchers::send_wakes(control_, End::kReceiving);  // wakes coroutines, and
  notify_all(control_.shared.items);                // other threads of this process
}

// Returns the word that the record of this message gets when the message is returned.
std::uint64_t Returns::word_of_returned(const Incoming& message) const noexcept {
  const std::uint64_t taken = record_word(RecordState::kTaken, memory::kNoIdentity, message.attempts());
  return given_back(taken, load_once(control_.shared.max_attempts), message.failed_builds());
}

bool Returns::is_given_up(const Incoming& message) const noexcept {
  return state_of_record(word_of_returned(message)) == RecordState::kRejected;
}

// Turns a free record into that of a returned message. Returns its state, or nothing if the arena's lock is busy. Under
// the receivers' lock.
std::optional<RecordState> Returns::write_returned(Record& record, const Incoming& message) noexcept {
  if (message.in_block() && !control_.arena.reclaimer().try_set_delivered(message.block())) return std::nullopt;
  message.write_to(record.slot());
  const std::uint64_t word = word_of_returned(message);
  record.set_failed_builds(message.failed_builds());
  records_.set(record, word);
  return state_of_record(word);
}

// Under the receivers' lock.
Returns::Attempt Returns::try_return(const Incoming& message) noexcept {
  SHMTREE_DCHECK(memory::HeldLocks::contains(control_.shared.receivers_lock));
  Record* record = records_.find_free();
  if (record == nullptr) return {.lacks_record = true};
  return {.became = write_returned(*record, message)};
}

// Call it after unlocking.
void Returns::finish_return(Incoming& message, RecordState became) noexcept {
  SHMTREE_DCHECK(!memory::HeldLocks::contains(control_.shared.receivers_lock));
  message.drop();
  watchers_.announce_settled(became);
}

// False, with the message unchanged, if there is no memory for a record or a lock is not free soon.
bool Returns::give_back_briefly(Incoming& message) noexcept try {
  if (control_.is_discarded()) return discard(message), true;
  constexpr int kMaxTries = 4;
  Arena& arena = control_.arena;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    if (!arena.reconciler().lock_briefly(control_.shared.receivers_lock)) return false;
    const Attempt attempt = try_return(message);
    arena.unlock(control_.shared.receivers_lock);
    if (attempt.became) return finish_return(message, *attempt.became), true;
    if (!arena.reconciler().lock_briefly(arena.header().arena_lock)) return false;  // wait until the lock was free once
    arena.reclaimer().unlock();
    if (attempt.lacks_record && !records_.add(WaitContext{Deadline::immediate()})) return false;
  }
  return false;
} catch (const std::bad_alloc&) {
  return false;
}

// The message is in no record, so one store counts it as done.
void Returns::discard(Incoming& message) noexcept {
  add(control_.shared.tasks_done, std::uint64_t{1});
  message.drop();
  watchers_.announce_settled(RecordState::kFree);
}

// Keeps every message in a list during a wait, which may run code that forks. The child must not return what its parent
// received: for the child, the lists count as empty.
Status Returns::give_back_all(Kind kind, const WaitContext& wait) {
  constexpr int kMaxTries = 64;  // for one message
  Arena& arena = control_.arena;
  for (int tries = 0; unreturned_.count(kind) != 0;) {
    if (control_.is_discarded()) {
      if (auto first = unreturned_.take_first(kind)) discard(first->message);
      continue;
    }
    Status locked = arena.lock(control_.shared.receivers_lock, wait);
    if (!locked) return locked;
    std::unique_ptr<Received> first = unreturned_.take_first(kind);
    const Attempt attempt = first == nullptr ? Attempt{} : try_return(first->message);
    arena.unlock(control_.shared.receivers_lock);
    if (first == nullptr) continue;  // another thread has taken it
    if (attempt.became) {
      finish_return(first->message, *attempt.became);
      tries = 0;
      continue;
    }
    keep(std::move(first), kind);
    if (++tries == kMaxTries)
      return Error{Code::kTimeout, "timed out waiting for the arena's lock, which other threads hold"};
    Status gone_on = attempt.lacks_record ? add_record() : wait_for_arena_lock(wait);
    if (!gone_on) return gone_on;
  }
  return success();
}

Status Returns::add_record() {
  Status added = records_.add(WaitContext{Deadline::immediate()});
  if (added || added.code() != Code::kFull) return added;
  return Error{Code::kOutOfSharedMemory,
               "no shared memory to record a message that this process must first return to the channel"};
}

Status Returns::wait_for_arena_lock(const WaitContext& wait) {
  Status locked = control_.arena.lock(control_.arena.header().arena_lock, wait);
  if (locked) control_.arena.reclaimer().unlock();
  return locked;
}

Status Returns::reject_all(const WaitContext& wait) {
  Status rejected = give_back_all(Kind::kGivenUp, wait);
  return rejected || rejected.code() != Code::kOutOfSharedMemory ? std::move(rejected) : success();
}

void Returns::give_back_before_leaving() noexcept try {
  const WaitContext wait{Deadline::immediate()};
  give_back_all(Kind::kGivenUp, wait).ok();
  give_back_all(Kind::kReceivable, wait).ok();
} catch (const std::bad_alloc&) {  // the messages are lost
}

bool Returns::receive_unreturned(Incoming& out) noexcept {
  while (auto first = unreturned_.take_first(Kind::kReceivable)) {
    if (control_.is_discarded()) {
      discard(first->message);
      continue;
    }
    out = std::move(first->message);
    out.count_attempt();
    watchers_.refresh_fd(End::kReceiving);
    return true;
  }
  return false;
}

}  // namespace shmtree::channel
