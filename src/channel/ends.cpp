// Who takes part in an end, and when a stream has ended.
//
// A process takes part from the moment it has the end (made, inherited, or on its way to it) until it leaves, exits,
// dies, or uses the other end without ever having used this one. An end that nobody takes part in any more, though
// somebody did, is over: for receivers that is the end of the stream.
#include <algorithm>
#include <mutex>

#include "channel/channel.h"
#include "channel/recovery.h"
#include "platform/atomics.h"

namespace shmtree::channel {

using namespace platform;

namespace {

End other(End which) noexcept {
  return which == End::kSending ? End::kReceiving : End::kSending;
}

}  // namespace

Status Channel::join(End which) {
  auto me = arena_->identity();
  if (!me) return std::move(me).error();
  // A death that was not noticed yet has to be, before its successor is seated.
  if (ending() == Ending::kWait && arena_->participants().check(0)) arena_->reconcile(WaitContext{}).ok();
  {
    const std::lock_guard guard(mutex_);
    ++local_ends_[static_cast<std::uint32_t>(which)];
  }
  seat(which, *me);
  return success();
}

void Channel::seat(End which, Identity who) noexcept {
  if (!end(which).members.add(memory::slot_of(who))) return;
  if (ending() != Ending::kWait) return;
  // One that was killed and waited for has its successor.
  std::atomic<std::uint32_t>& killed = end(which).killed.count;
  std::uint32_t count = load_acquire(killed);
  while (count != 0 && !compare_swap(killed, count, std::min(count, kMostKilled) - 1)) {
  }
}

void Channel::leave(End which) noexcept {
  {
    const std::lock_guard guard(mutex_);
    std::uint32_t& count = local_ends_[static_cast<std::uint32_t>(which)];
    if (count == 0 || --count != 0) return;
  }
  if (which == End::kReceiving && kept_here() != 0) return_kept();
  unwatch(which);
  depart(which);
}

bool Channel::is_used_here() noexcept {
  const std::lock_guard guard(mutex_);
  return local_ends_[0] != 0 || local_ends_[1] != 0;
}

// The process takes no part in the end any more.
void Channel::depart(End which) noexcept {
  const Identity me = arena_->current_identity();
  if (me == memory::kNobody) return;
  if (!end(which).members.contains(memory::slot_of(me))) return;
  store_full(end(which).begun, 1u);  // before the bit goes: a kill in between leaves it to the reconcile
  end(which).members.remove(memory::slot_of(me));
  end(which).users.remove(memory::slot_of(me));
  used_as_[static_cast<std::uint32_t>(which)].store(memory::kNobody, std::memory_order_relaxed);
  if (!anyone_at(which)) wake_all();
}

void Channel::mark_used(End which, Identity me) noexcept {
  std::atomic<Identity>& seen = used_as_[static_cast<std::uint32_t>(which)];
  if (seen.load(std::memory_order_relaxed) == me) [[likely]]
    return;
  seen.store(me, std::memory_order_relaxed);
  end(which).users.add(memory::slot_of(me));
  if (end(which).members.contains(memory::slot_of(me))) store_full(end(which).begun, 1u);
  // This may have been the use that tells it takes no part in the other end.
  if (!anyone_at(other(which))) wake_all();
}

bool Channel::anyone_has(End which) noexcept {
  const EndState& mine = end(which);
  const EndState& others = end(other(which));
  for (std::uint32_t i = 0; i < kParticipantWords; ++i) {
    const std::uint64_t uses_only_the_other = load_acquire(others.users.words[i]) & ~load_acquire(mine.users.words[i]);
    if ((load_full(mine.members.words[i]) & ~uses_only_the_other) != 0) return true;
  }
  return false;
}

// Whether nobody takes part in `which` any more, and those at the other end are to be told.
bool Channel::is_over(End which) noexcept {
  if (ending() == Ending::kNever || load_acquire(end(which).begun) == 0 || anyone_at(which)) return false;
  if (ending() == Ending::kWait && load_acquire(end(which).killed.count) != 0) return false;
  return which == End::kReceiving || !others_may_return();
}

// What they are told: that peers were killed, to whoever takes the list back, and that it is over to the others.
Error Channel::end_error(End which) {
  KilledList& killed = end(which).killed;
  std::uint32_t count = load_acquire(killed.count);
  while (count != 0) {
    Error error{Code::kPeerDied, which == End::kSending ? "no senders are left, and these died without closing:"
                                                        : "no receivers are left, and these died without closing:"};
    for (std::uint32_t i = 0; i < std::min(count, kMostKilled); ++i) error.pids.push_back(load_relaxed(killed.pids[i]));
    if (!compare_swap(killed.count, count, 0u)) continue;
    for (const int pid : error.pids) error.message.append(" ").append(std::to_string(pid));
    return error;
  }
  return Error{Code::kClosed, which == End::kSending ? "the stream has ended: every sender has closed or exited"
                                                     : "no receivers are left: every one has closed or exited"};
}

void Recovery::add_killed(KilledList& killed, std::int32_t pid) noexcept {
  std::uint32_t count = load_acquire(killed.count);
  do {
    for (std::uint32_t i = 0; i < std::min(count, kMostKilled); ++i) {
      if (load_relaxed(killed.pids[i]) == pid) return;  // noted by a reconcile that did not get to its end
    }
    if (count >= kMostKilled) return;
    store_relaxed(killed.pids[count], pid);
  } while (!compare_swap(killed.count, count, count + 1));
}

void Channel::join_for(Identity child, End which) noexcept {
  if (memory::BlockEntry* block = arena_->blocks().entry(lease_.ref().id)) block->holders.add(memory::slot_of(child));
  store_full(end(which).begun, 1u);
  seat(which, child);
}

void Channel::leave_all() noexcept {
  for (const auto& channel : Channels::all()) {
    for (const End which : {End::kSending, End::kReceiving}) {
      {
        const std::lock_guard guard(channel->mutex_);
        std::uint32_t& count = channel->local_ends_[static_cast<std::uint32_t>(which)];
        if (count == 0) continue;
        count = 0;
      }
      channel->depart(which);  // descriptors stay: other threads may still poll them
    }
    channel->arena_->participants().detach();
  }
}

}  // namespace shmtree::channel
