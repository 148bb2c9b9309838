#include "channel/returns.h"

#include <new>
#include <utility>

namespace shmtree::channel {

using namespace platform;

void Returns::give_back(std::unique_ptr<Received> received) noexcept {
  if (!received->message.was_received_by(control_.arena.current_identity())) return;  // a copy, of a forked child's
  if (try_give_back(received->message)) return;
  const Kind kind = is_given_up(received->message) ? Kind::kGivenUp : Kind::kReceivable;
  unreturned_.add(std::move(received), kind);
  if (kind == Kind::kGivenUp) return;
  watchers_.refresh_fd(End::kReceiving);
  Watchers::wake_sockets(control_, End::kReceiving);  // coroutines, and
  notify_all(control_.shared.items);                  // other threads of this process may wait
}

// The word of a record whose message this is, once it is given back.
std::uint64_t Returns::word_of_returned(const Incoming& message) const noexcept {
  const std::uint64_t taken = record_word(RecordState::kTaken, memory::kNobody, message.attempts());
  return given_back(taken, load_once(control_.shared.max_attempts), message.failed_builds());
}

bool Returns::is_given_up(const Incoming& message) const noexcept {
  return state_of_record(word_of_returned(message)) == RecordState::kRejected;
}

// Under the receivers' lock: a free record becomes that of a message that was taken and given back. What it became;
// nothing when the arena's lock is taken.
std::optional<RecordState> Returns::write_returned(Record& record, const Incoming& message) noexcept {
  if (message.in_block() && !control_.arena.reclaimer().try_set_delivered(message.block())) return std::nullopt;
  message.write_to(record.slot());
  const std::uint64_t word = word_of_returned(message);
  record.set_failed_builds(message.failed_builds());
  records_.set(record, word);
  return state_of_record(word);
}

// False, with the message unchanged, if there is no memory for a record or a lock is not free soon. Destructors call
// this, and may hold Python's GIL.
bool Returns::try_give_back(Incoming& message) noexcept try {
  if (control_.is_discarded()) return discard(message), true;
  constexpr int kMostTries = 4;
  const WaitContext at_once{Deadline::immediate()};
  Arena& arena = control_.arena;
  std::optional<RecordState> became;
  for (int tries = 0; !became; ++tries) {
    if (tries == kMostTries || !arena.reconciler().lock_briefly(control_.shared.receivers_lock)) return false;
    Record* record = records_.find_free();
    if (record != nullptr) became = write_returned(*record, message);
    arena.unlock(control_.shared.receivers_lock);
    if (became) break;
    if (!arena.reconciler().lock_briefly(arena.header().arena_lock)) return false;  // wait until the lock was free once
    arena.reclaimer().unlock();
    if (record == nullptr && !records_.add(at_once)) return false;
  }
  message.drop();
  watchers_.announce_settled(*became);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

// In no record, so that one store tells of it.
void Returns::discard(Incoming& message) noexcept {
  add(control_.shared.tasks_done, std::uint64_t{1});
  message.drop();
  watchers_.announce_settled(RecordState::kFree);
}

bool Returns::give_back_all(Kind kind) noexcept {
  while (auto first = unreturned_.take_first(kind)) {
    if (try_give_back(first->message)) continue;
    unreturned_.add(std::move(first), kind);
    return false;
  }
  return true;
}

bool Returns::give_back_unreturned() noexcept {
  reject_given_up();
  return give_back_all(Kind::kReceivable);
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
