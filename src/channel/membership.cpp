#include "channel/membership.h"

#include <algorithm>
#include <utility>

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

}  // namespace shmtree::channel
