#include "channel/membership.h"

#include <algorithm>
#include <new>
#include <utility>

#include "memory/held_locks.h"
#include "memory/transfers.h"
#include "platform/dcheck.h"

namespace shmtree::channel {

using namespace platform;

Status Membership::join(End end) {
  auto me = control_.arena.identity();
  if (!me) return std::move(me).error();
  // A death must be detected before its successor joins.
  if (control_.ending() == Ending::kWait && control_.arena.participants().check(0)) {
    control_.arena.reconcile(WaitContext{}).ok();
  }
  const std::lock_guard guard(mutex_);
  ++objects_[end];
  joined_as_[end].store(*me, std::memory_order_relaxed);
  add_member(end, *me);
  return success();
}

Status Membership::join_late(End end) {
  // In a queue, only processes that have left an end themselves see that it is over.
  const bool has_witness = !control_.is_queue() || ends_.has_attached_member(End::kReceiving);
  if (end == End::kSending && has_witness && ends_.is_left(end)) return ends_.left_before_use();
  return join(end);
}

void Membership::note_given(End end) noexcept {
  const Identity me = control_.arena.current_identity();
  if (me == memory::kNoIdentity || !state(end).given.add(memory::slot_of(me))) return;
  if (joined_as_[end].exchange(me, std::memory_order_relaxed) != me) replace_killed(end);
}

bool Membership::is_used(End end) const noexcept {
  const Identity me = control_.arena.current_identity();
  return me != memory::kNoIdentity && state(end).users.contains(memory::slot_of(me));
}

void Membership::add_member(End end, Identity identity) noexcept {
  const bool added = state(end).members.add(memory::slot_of(identity));
  add(state(end).seats, 1u);
  if (added) replace_killed(end);
  announce_receiver(end);
}

// Removes one killed member from the list: this process is its successor.
void Membership::replace_killed(End end) noexcept {
  if (control_.ending() != Ending::kWait) return;
  for (auto& noted : state(end).killed.words) {
    memory::DeathWord word = load_relaxed(noted);
    if (word != 0 && compare_swap(noted, word, 0)) return;
  }
}

void Membership::leave(End end) noexcept {
  leave(end, Role::kMember);
}

void Membership::make_passive(End end) noexcept {
  const Identity me = control_.arena.current_identity();
  {
    const std::lock_guard guard(mutex_);
    if (++passive_[end] == 1 && me != memory::kNoIdentity) state(end).passive.add(memory::slot_of(me));
  }
  leave(end, Role::kPassive);
}

void Membership::end_passive(End end) noexcept {
  const Identity me = control_.arena.current_identity();
  const std::lock_guard guard(mutex_);
  SHMTREE_DCHECK(passive_[end] != 0);
  if (--passive_[end] == 0 && me != memory::kNoIdentity) state(end).passive.remove(memory::slot_of(me));
}

void Membership::leave(End end, Role role) noexcept {
  {
    const std::lock_guard guard(mutex_);
    if (objects_[end] == 0 || --objects_[end] != 0) return;
  }
  leave_end(end, role);
}

void Membership::leave_now(End end) noexcept {
  {
    const std::lock_guard guard(mutex_);
    if (leaving_[end] == 0) return;
    --leaving_[end];
    if (objects_[end] == 0 || --objects_[end] != 0) return;
  }
  leave_end(end, Role::kMember);
}

// Called after the last object of the end is destroyed.
void Membership::leave_end(End end, Role role) noexcept {
  if (end == End::kReceiving) returns_.give_back_before_leaving();
  watchers_.close_fd(end);
  if (role == Role::kMember) note_failure(end);
  depart_unless_used(end, role);
}

void Membership::leave_all() noexcept {
  for (const End end : kEnds) {
    // There is none if this Channel lost the race to be registered as the process's only one.
    if (objects_[end] != 0) {
      objects_[end] = 1;
      leave(end);
    }
  }
  for (const End end : kEnds) watchers_.close_fd(end);  // also opened by processes without an object of the end
}

void Membership::leave_at_exit() noexcept {
  for (const End end : kEnds) note_failure(end);  // of both, before a use of either is forgotten
  for (const End end : kEnds) {
    const Identity me = control_.arena.current_identity();
    if (me != memory::kNoIdentity) state(end).passive.remove(memory::slot_of(me));
    {
      const std::lock_guard guard(mutex_);
      if (std::exchange(objects_[end], 0) == 0) continue;
    }
    depart_unless_used(end);
  }
}

bool Membership::is_used_here() noexcept {
  const std::lock_guard guard(mutex_);
  return is_open(End::kSending) || is_open(End::kReceiving);
}

void Membership::note_failure(End end) noexcept {
  const memory::Failure failure = memory::exit_failure();
  if (failure != memory::Failure::kNone) ends_.note_failed(end, failure);
}

// Detaches the process from the end, unless another thread has joined it since the last object was destroyed.
void Membership::depart_unless_used(End end, Role role) noexcept {
  const Identity me = control_.arena.current_identity();
  if (me == memory::kNoIdentity) return;
  {
    const std::lock_guard guard(mutex_);
    if (objects_[end] != 0 || !state(end).members.contains(memory::slot_of(me))) return;
    if (role == Role::kMember || state(end).users.contains(memory::slot_of(me))) store_seq_cst(state(end).begun, 1u);
    state(end).members.remove(memory::slot_of(me));
    state(end).users.remove(memory::slot_of(me));
    state(end).given.remove(memory::slot_of(me));
    used_as_[end].store(memory::kNoIdentity, std::memory_order_relaxed);
  }
  if (ends_.may_end_waits(end)) watchers_.wake_all();
}

void Membership::note_use(End end, Identity me) noexcept {
  SHMTREE_DCHECK(me != memory::kNoIdentity);
  used_as_[end].store(me, std::memory_order_relaxed);
  // A forked child becomes known as a successor only here.
  if (joined_as_[end].exchange(me, std::memory_order_relaxed) != me) replace_killed(end);
  state(end).users.add(memory::slot_of(me));
  if (state(end).members.contains(memory::slot_of(me))) store_seq_cst(state(end).begun, 1u);
  announce_receiver(end);
  // This use may have detached the process from the other end.
  if (ends_.may_end_waits(other(end))) watchers_.wake_all();
}

Result<std::uint64_t> Membership::begin_transfer(End end) {
  auto me = control_.arena.identity();
  if (!me) return std::move(me).error();
  store_seq_cst(state(end).begun, 1u);
  return memory::begin_transfer(control_.arena.shared_from_this(), memory::pack(control_.block), transferred(end));
}

void Membership::end_transfer(std::uint64_t number, End end) noexcept {
  note_given(end);
  memory::end_transfer(control_.arena, memory::pack(control_.block), number);
  if (number != 0 && ends_.may_end_waits(end)) watchers_.wake_all();
}

void Membership::add_child_member(End end, Identity child) noexcept {
  SHMTREE_DCHECK(child != memory::kNoIdentity);
  if (memory::BlockEntry* block = control_.arena.blocks().entry(control_.block.id)) {
    block->holders.add(memory::slot_of(child));
  }
  state(end).members.add(memory::slot_of(child));
  add(state(end).seats, 1u);  // before this process may leave; see Ends::has_users()
  announce_receiver(end);
}

void Membership::give_to(Identity child, End end) noexcept {
  store_seq_cst(state(end).begun, 1u);
  add_child_member(end, child);
  replace_killed(end);
  state(end).given.add(memory::slot_of(child));
}

void Membership::pass_to_child(Identity child) noexcept {
  for (const End end : kEnds) {
    if (is_open(end)) add_child_member(end, child);
    if (passive_[end] != 0) state(end).passive.add(memory::slot_of(child));
  }
}

void Membership::drop_leaving() noexcept {
  for (const End end : kEnds) objects_[end] -= std::min(std::exchange(leaving_[end], 0), objects_[end]);
}

// --- Returns

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
