#include "channel/receiving.h"

#include <algorithm>

#include "channel/peer_wait.h"
#include "memory/held_locks.h"
#include "platform/dcheck.h"

namespace shmtree::channel {

using namespace platform;

bool Receiving::receive_returned(Incoming& out, Identity me, Receipt& receipt) noexcept {
  Record* record = parts_.records.oldest_returned();
  if (record == nullptr) {
    parts_.records.forget_returned();
    return false;
  }
  const std::uint32_t attempts = attempts_with_this(load_relaxed(record->state));
  if (!parts_.head.hold_again(*record, me, attempts, out, receipt)) return false;
  parts_.records.set(*record, parts_.control.is_discarded() ? kDiscardedRecord : kFreeRecord);
  if (out.in_block()) parts_.control.arena.reclaimer().set_delivered(out.block(), false);
  return true;
}

// Under the receivers' lock.
bool Receiving::receive_next(Incoming& out, Identity me, Receipt& receipt) noexcept {
  SHMTREE_DCHECK(memory::HeldLocks::contains(parts_.control.shared.receivers_lock));
  if (load_relaxed(parts_.control.shared.returned) != 0) [[unlikely]] {
    if (receive_returned(out, me, receipt)) return true;
    if (receipt.starved) return false;
  }
  return parts_.head.receive(out, me, receipt);
}

// Returns true if it received a message.
Result<bool> Receiving::get_now(Incoming& out, Identity me, const WaitContext& wait) {
  ChannelHeader& shared = parts_.control.shared;
  if (parts_.unreturned.count() != 0 && parts_.returns.receive_unreturned(out)) [[unlikely]]
    return true;
  // Reads the senders' cache line only when all messages that are known to have been put are received.
  if (load_relaxed(shared.head) == load_relaxed(shared.cached_tail) && !parts_.head.has_messages()) return false;
  Status locked = parts_.control.arena.lock(shared.receivers_lock, wait);
  if (!locked) return in_time(std::move(locked).error(), Code::kEmpty);
  Receipt receipt;
  const Access access = this->access();
  const bool got = access == Access::kFree && receive_next(out, me, receipt);
  parts_.control.arena.unlock(shared.receivers_lock);
  if (access != Access::kFree) [[unlikely]] {
    if (access == Access::kShutDown) return discarded(wait);
    return false;
  }
  receipt.release_spent(parts_.control.arena);
  parts_.membership.mark_used(End::kReceiving, me);
  if (got) {
    parts_.watchers.announce_received();
  } else if (receipt.is_left()) {
    return receipt.error(parts_.control.arena);
  }
  return got;
}

Status Receiving::get(Incoming& out, const WaitContext& wait) {
  return receive_by([&](Identity me, const WaitContext& by) { return get_now(out, me, by); }, wait);
}

template <class Ready>
Status Receiving::wait_for_messages(const Ready& is_ready, const WaitContext& wait) const {
  const Control& control = parts_.control;
  const auto reason = control.sleep_at(End::kReceiving, memory::WaitFor::kMessage);
  parts_.watchers.check_exits(End::kReceiving);
  return wait_for_peers(control, parts_.ends, {control.shared.items, reason, End::kSending, "a message"}, is_ready,
                        wait);
}

Status Receiving::poll(const WaitContext& wait) {
  auto me = parts_.control.arena.identity();
  if (!me) return std::move(me).error();
  parts_.membership.mark_used(End::kReceiving, *me);
  const auto is_ready = [this] { return parts_.watchers.ready(); };
  Status waited = wait_for_messages(is_ready, wait);
  parts_.watchers.leave_messages_to_others();
  if (waited || waited.code() == Code::kClosed || waited.code() == Code::kPeerDied) return success();
  return in_time(std::move(waited).error(), Code::kEmpty);
}

Status Receiving::wait_until_ready(const WaitContext& wait) {
  ChannelHeader& shared = parts_.control.shared;
  const auto is_ready = [this] { return parts_.watchers.can_receive(); };
  const auto messages = [&] { return is_ready() ? std::max<std::uint64_t>(parts_.watchers.size(), 1) : 0; };
  if (spinner_.until(messages, shared.capacity == 0 ? ~std::uint64_t{0} : shared.capacity / 2, wait)) {
    return success();
  }
  Status waited = wait_for_messages(is_ready, wait);
  if (waited) return waited;
  // An interrupted call may have been woken for a message that it leaves.
  if (waited.code() == Code::kInterrupted) parts_.watchers.leave_messages_to_others();
  parts_.watchers.refresh_fd(End::kReceiving);  // may be readable for a message that was received
  return in_time(std::move(waited).error(), Code::kEmpty);
}

Receiving::Access Receiving::access() const noexcept {
  if (parts_.control.is_discarded()) return Access::kShutDown;
  return parts_.control.is_reserved(End::kReceiving) ? Access::kReserved : Access::kFree;
}

Status Receiving::discard_queued(const WaitContext& wait) {
  auto me = parts_.control.arena.identity();
  if (!me) return std::move(me).error();
  while (parts_.head.has_messages()) {
    Status locked = parts_.control.arena.lock(parts_.control.shared.receivers_lock, wait);
    if (!locked) return locked;
    Incoming dropped;
    Receipt receipt;
    const bool received = receive_next(dropped, *me, receipt);
    parts_.control.arena.unlock(parts_.control.shared.receivers_lock);
    receipt.release_spent(parts_.control.arena);
    if (!received && receipt.is_left()) break;  // left for the next receiver
  }
  return success();
}

// Under the receivers' lock.
void Receiving::drop_next(Drop& drop, Identity me) noexcept {
  SHMTREE_DCHECK(!drop.dropped);
  ChannelHeader& shared = parts_.control.shared;
  drop.dropped = access() == Access::kFree && receive_next(drop.message, me, drop.receipt);
  if (drop.dropped) store_relaxed(shared.dropped, load_relaxed(shared.dropped) + 1);
}

void Receiving::finish(Drop& drop) noexcept {
  drop.receipt.release_spent(parts_.control.arena);
  drop.message.drop();
  if (drop.dropped) parts_.watchers.announce_received();
}

bool Receiving::try_drop_oldest(Drop& drop, Identity me) noexcept {
  memory::RobustLock lock(parts_.control.shared.receivers_lock, parts_.control.arena.participants());
  if (!lock.try_lock_as(me)) return false;
  // A dead process may have left the guarded words inconsistent, and their recovery takes the senders' lock as well.
  if (!memory::needs_recovery(parts_.control.arena.header())) drop_next(drop, me);
  lock.unlock();
  return drop.dropped;
}

Result<bool> Receiving::drop_oldest(const WaitContext& wait) {
  auto me = parts_.control.arena.identity();
  if (!me) return std::move(me).error();
  ChannelHeader& shared = parts_.control.shared;
  Status locked = parts_.control.arena.lock(shared.receivers_lock, wait);
  if (!locked) return std::move(locked).error();
  Drop drop;
  drop_next(drop, *me);
  parts_.control.arena.unlock(shared.receivers_lock);
  finish(drop);
  return drop.dropped;
}

Error Receiving::discarded(const WaitContext& wait) {
  Status dropped = discard_queued(wait);
  return dropped ? shut_down_error() : std::move(dropped).error();
}

}  // namespace shmtree::channel
