#include "channel/acks.h"

#include <algorithm>

#include "channel/peer_wait.h"

namespace shmtree::channel {

using namespace platform;

bool Acks::is_acked(std::uint64_t ticket) noexcept {
  if (ticket >= load_acquire(control_.shared.head)) return false;
  if (load_acquire(control_.shared.taken) == 0) return true;
  return records_.count_unacked([&](const RingSlot& slot) { return load_once(slot.ticket) == ticket; }) == 0;
}

bool Acks::all_acked(Identity me) noexcept {
  const std::uint64_t head = load_acquire(control_.shared.head);
  if (tail_.sent_end(me) > head) return false;
  if (load_acquire(control_.shared.taken) == 0) return true;
  return records_.count_unacked([&](const RingSlot& slot) { return load_once(slot.sender) == me; }) == 0;
}

// A slot below `tail` stays as it is until `head` passes it. The segments may be freed meanwhile, but only if `head`
// moves.
std::uint64_t Acks::not_received(Identity me, std::uint64_t head) const noexcept {
  const std::uint64_t end = std::min(load_acquire(control_.shared.tail), tail_.sent_end(me));
  std::uint64_t count = 0;
  Segment segment = segment_at(control_, load_acquire(control_.shared.head_segment));
  for (std::uint64_t ticket = head; segment && ticket < end;) {
    const Segment successor = segment_at(control_, load_acquire(segment.header->next));
    const std::uint64_t last = successor ? std::min(end, successor.base) : end;
    ticket = std::max({ticket, segment.base, last - std::min(last, segment.slots)});
    for (; ticket < last; ++ticket) {
      const RingSlot& slot = segment.at(ticket);
      count += load_once(slot.ticket) == ticket && load_once(slot.sender) == me;
    }
    if (!successor || successor.base <= segment.base) break;  // the last one, or damaged
    segment = successor;
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
