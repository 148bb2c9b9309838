#include "channel/acks.h"

#include <algorithm>
#include <mutex>
#include <new>

#include "channel/peer_wait.h"
#include "platform/dcheck.h"

namespace shmtree::channel {

using namespace platform;

void Acks::note_sent(std::uint64_t first, std::uint64_t count) noexcept {
  SHMTREE_DCHECK(count != 0);
  const Identity me = control_.arena.current_identity();
  const std::lock_guard guard(mutex_);
  if (sent_by_ != me) {  // a forked child does not own its parent's messages
    sent_.clear();
    sent_end_ = 0;
    sent_by_ = me;
  }
  const std::uint64_t end = first + count;
  sent_end_ = std::max(sent_end_, end);  // threads get here in any order
  if (!sent_.empty() && sent_.back().end == first) {
    sent_.back().end = end;
    // A single sender has one range, so the list does not grow. Ranges of received messages are removed below.
    return;
  }
  const std::uint64_t head = load_acquire(control_.shared.head);
  while (!sent_.empty() && sent_.front().end <= head) sent_.pop_front();
  try {
    sent_.push_back(Range{first, end});
  } catch (const std::bad_alloc&) {
    // The messages are in the channel already, so this must not fail. The last range absorbs them instead. pending() is
    // then too high, because it also counts messages of other senders in between. If no range can absorb them,
    // pending() is too low, because it misses them. wait() uses sent_end_ and stays correct.
    if (!sent_.empty() && first >= sent_.back().first) sent_.back().end = end;
  }
}

bool Acks::is_acked(std::uint64_t ticket) noexcept {
  if (ticket >= load_acquire(control_.shared.head)) return false;
  if (load_acquire(control_.shared.taken) == 0) return true;
  return records_.count_unacked([&](const RingSlot& slot) { return load_once(slot.ticket) == ticket; }) == 0;
}

bool Acks::all_acked(Identity me) noexcept {
  const std::uint64_t head = load_acquire(control_.shared.head);
  {
    const std::lock_guard guard(mutex_);
    if (sent_by_ == me && sent_end_ > head) return false;
  }
  if (load_acquire(control_.shared.taken) == 0) return true;
  return records_.count_unacked([&](const RingSlot& slot) { return load_once(slot.sender) == me; }) == 0;
}

std::uint64_t Acks::not_received(Identity me, std::uint64_t head) noexcept {
  const std::lock_guard guard(mutex_);
  std::uint64_t count = 0;
  if (sent_by_ != me) return count;
  for (const Range& range : sent_) {
    if (range.end > head) count += range.end - std::max(range.first, head);
  }
  return count;
}

std::uint64_t Acks::pending() {
  auto me = control_.arena.identity();
  if (!me) return 0;
  constexpr int kMaxPolls = 16;
  for (int attempt = 0;; ++attempt) {
    const std::uint64_t head = load_acquire(control_.shared.head);
    const std::uint64_t taken = records_.count_unacked(
        [&](const RingSlot& slot) { return load_once(slot.sender) == *me && load_once(slot.ticket) < head; });
    const std::uint64_t pending = taken + not_received(*me, head);
    if (attempt == kMaxPolls || load_acquire(control_.shared.head) == head) return pending;
  }
}

Status Acks::wait(std::optional<std::uint64_t> ticket, const WaitContext& wait) {
  auto me = control_.arena.identity();
  if (!me) return std::move(me).error();
  if (const std::uint64_t tail = load_acquire(control_.shared.tail); ticket && *ticket >= tail) {
    return Error{Code::kInvalid, "ticket " + std::to_string(*ticket) +
                                     " does not exist yet: the channel's next ticket is " + std::to_string(tail)};
  }
  const auto acked = [&] { return ticket ? is_acked(*ticket) : all_acked(*me); };
  Status waited = wait_for_peers(
      control_, ends_,
      {control_.shared.acked, control_.sleep_for(memory::WaitFor::kAcks), End::kReceiving, "acknowledgements"}, acked,
      wait);
  if (waited || waited.code() != Code::kTimeout) return waited;
  return Error{Code::kTimeout, std::to_string(pending()) + " messages were not acknowledged within the timeout" +
                                   ends_.if_unattended(End::kReceiving)};
}

}  // namespace shmtree::channel
