#include "channel/tasks.h"

#include <algorithm>
#include <string>

#include "channel/peer_wait.h"

namespace shmtree::channel {

using namespace platform;

// Returns the number of all tasks, except discarded and rejected ones. The loads are ordered so that a message is
// counted if its record changes meanwhile: join() may then check once more, but never ends early.
std::uint64_t Tasks::last() const noexcept {
  const ChannelHeader& shared = control_.shared;
  if (!control_.is_discarded()) {
    const std::uint64_t rejected = records_.rejected(), tail = load_seq_cst(shared.tail);
    return tail - std::min(tail, rejected);
  }
  const std::uint64_t received = load_relaxed(shared.discarded_from), discarded = records_.discarded();
  return received - std::min(received, discarded + records_.rejected());
}

std::uint64_t Tasks::unfinished() const noexcept {
  const std::uint64_t done = load_seq_cst(control_.shared.tasks_done);  // first: it never exceeds the tasks
  return std::max(last(), done) - done;
}

Status Tasks::done() {
  std::atomic<std::uint64_t>& tasks_done = control_.shared.tasks_done;
  std::uint64_t done = load_acquire(tasks_done);
  do {
    if (done >= last()) {
      return Error{Code::kInvalid, "task_done() called too many times: all " + std::to_string(done) +
                                       " tasks are done, and rejected messages need no call"};
    }
  } while (!compare_swap(tasks_done, done, done + 1));
  if (done + 1 >= last()) notify_all(control_.shared.acked);
  return success();
}

Status Tasks::join(const WaitContext& wait) {
  const auto all_done = [this] { return unfinished() == 0; };
  const auto reason = control_.sleep_for(memory::WaitFor::kTasks);
  Status waited =
      wait_for_peers(control_, ends_, {control_.shared.acked, reason, End::kReceiving, "tasks"}, all_done, wait);
  if (waited && control_.is_discarded()) front_.discard_queued(wait).ok();  // left by a dead process
  if (waited || waited.code() != Code::kTimeout) return waited;
  return Error{Code::kTimeout, std::to_string(unfinished()) + " tasks were not done within the timeout"};
}

// Takes one lock after the other: a call that finds the second lock's owner dead has the channel repaired, which takes
// both.
Status Tasks::shut_down(bool discard, const WaitContext& wait) {
  ChannelHeader& shared = control_.shared;
  Arena& arena = control_.arena;
  Status locked = arena.lock(shared.senders_lock, wait);
  if (!locked) return locked;
  if (control_.shutdown() == Shutdown::kNot) {
    store_release(shared.shutdown, static_cast<std::uint32_t>(Shutdown::kNoMorePuts));
  }
  arena.unlock(shared.senders_lock);
  if (discard && (locked = arena.lock(shared.receivers_lock, wait)).ok()) {
    if (!control_.is_discarded()) {
      store_relaxed(shared.discarded_from, load_relaxed(shared.head));
      store_release(shared.shutdown, static_cast<std::uint32_t>(Shutdown::kDiscarded));
    }
    arena.unlock(shared.receivers_lock);
  }
  watchers_.wake_all();
  if (!locked) return locked;
  return discard ? front_.discard_queued(wait) : success();
}

Status Tasks::reserve(End end, const WaitContext& wait) {
  auto me = control_.arena.identity();
  if (!me) return std::move(me).error();
  const auto take_it = [&] {
    Identity expected = memory::kNoIdentity;
    return compare_swap(control_.shared.reserved[end], expected, *me);
  };
  // At this event every waiter checks again when it is signalled, so a reservation consumes no wake-up that is meant
  // for a message.
  const auto reason = control_.sleep_for(memory::WaitFor::kReservation);
  return wait_for_peers(control_, ends_, {control_.shared.acked, reason, End::kReceiving, "a reservation"}, take_it,
                        wait);
}

bool Tasks::release(End end) noexcept {
  const bool was =
      exchange_seq_cst(control_.shared.reserved[end], Identity{memory::kNoIdentity}) != memory::kNoIdentity;
  if (was) watchers_.wake_all();
  return was;
}

}  // namespace shmtree::channel
