// What a queue has besides: tasks that are counted, shutting down, and an end that one process reserves for itself.
//
// Nothing here needs repair: the number of unfinished tasks is the difference of two words, and what was shut down
// stays so.
#include <algorithm>

#include "channel/channel.h"
#include "channel/waiting.h"
#include "platform/atomics.h"

namespace shmtree::channel {

using namespace platform;

namespace {

Shutdown shutdown_of(const ChannelHeader& shared) noexcept {
  return static_cast<Shutdown>(load_acquire(shared.shutdown));
}

}  // namespace

// Under the receivers' lock: whether this process may receive what is there.
Channel::Access Channel::receiving_access() const noexcept {
  if (shutdown_of(header()) == Shutdown::kDiscarded) return Access::kShutDown;
  return is_reserved(End::kReceiving) ? Access::kReserved : Access::kFree;
}

// How many tasks there are in all.
std::uint64_t Channel::last_task() const noexcept {
  const ChannelHeader& shared = header();
  return shutdown_of(shared) == Shutdown::kDiscarded ? load_relaxed(shared.discarded_from) : load_full(shared.tail);
}

std::uint64_t Channel::unfinished_tasks() const noexcept {
  const std::uint64_t done = load_full(header().tasks_done);  // first: it never overtakes the tasks
  return std::max(last_task(), done) - done;
}

Status Channel::task_done() {
  std::atomic<std::uint64_t>& tasks_done = header().tasks_done;
  std::uint64_t done = load_acquire(tasks_done);
  do {
    if (done >= last_task()) {
      return Error{Code::kInvalid, "task_done() called too many times: all " + std::to_string(done) +
                                       " messages that were put are done already"};
    }
  } while (!compare_swap(tasks_done, done, done + 1));
  if (done + 1 == last_task()) notify_all(header().acked);
  return success();
}

Status Channel::join_tasks(const WaitContext& wait) {
  Status waited = wait_at(
      header().acked, End::kReceiving, "tasks", [this] { return unfinished_tasks() == 0; }, wait);
  if (waited || waited.code() != Code::kTimeout) return waited;
  return Error{Code::kTimeout, std::to_string(unfinished_tasks()) + " tasks were not done in time"};
}

// One lock after the other: whoever finds the second one's owner dead has the channel repaired, which takes both.
Status Channel::shut_down(bool discard, const WaitContext& wait) {
  ChannelHeader& shared = header();
  Status locked = arena_->lock(shared.senders_lock, wait);
  if (!locked) return locked;
  if (shutdown_of(shared) == Shutdown::kNot) {
    store_release(shared.shutdown, static_cast<std::uint32_t>(Shutdown::kNoMorePuts));
  }
  arena_->unlock(shared.senders_lock);
  if (discard && (locked = arena_->lock(shared.receivers_lock, wait)).ok()) {
    if (shutdown_of(shared) != Shutdown::kDiscarded) {
      store_relaxed(shared.discarded_from, load_relaxed(shared.head));
      store_release(shared.shutdown, static_cast<std::uint32_t>(Shutdown::kDiscarded));
    }
    arena_->unlock(shared.receivers_lock);
  }
  wake_all();
  if (!locked) return locked;
  return discard ? discard_queued(wait) : success();
}

// Drops what a shutdown discarded. Whoever finds some does, since the one who shut down may have died.
Status Channel::discard_queued(const WaitContext& wait) {
  ChannelHeader& shared = header();
  auto me = arena_->identity();
  if (!me) return std::move(me).error();
  while (has_messages()) {
    Status locked = arena_->lock(shared.receivers_lock, wait);
    if (!locked) return locked;
    Incoming dropped;
    Receipt receipt;
    const bool received = receive_next(dropped, *me, receipt);
    arena_->unlock(shared.receivers_lock);
    settle_receipt(receipt);
    if (!received && (receipt.damaged || receipt.starved)) break;  // left to whoever looks next
  }
  return success();
}

Error Channel::shut_down_error() {
  return Error{Code::kShutDown, "the queue was shut down"};
}

// For a call that found the queue emptied by its shutdown.
Error Channel::discarded(const WaitContext& wait) {
  Status dropped = discard_queued(wait);
  return dropped ? shut_down_error() : std::move(dropped).error();
}

Status Channel::reserve(End which, const WaitContext& wait) {
  auto me = arena_->identity();
  if (!me) return std::move(me).error();
  std::atomic<Identity>& reserved = header().reserved[static_cast<std::uint32_t>(which)];
  const auto take_it = [&] {
    Identity nobody = memory::kNobody;
    return compare_swap(reserved, nobody, *me);
  };
  // An event at which everyone looks when it is signalled: no message's one wake-up ends here.
  return wait_at(header().acked, which == End::kReceiving ? End::kSending : End::kReceiving, "a reservation", take_it,
                 wait);
}

bool Channel::release(End which) noexcept {
  std::atomic<Identity>& reserved = header().reserved[static_cast<std::uint32_t>(which)];
  const bool was = exchange_full(reserved, Identity{memory::kNobody}) != memory::kNobody;
  if (was) wake_all();
  return was;
}

}  // namespace shmtree::channel
