// Puts messages. For a large message, reserve() waits for space and allocates a block, and the caller writes the frame
// there. A small message goes into the ring itself. The store of `tail` in put() publishes the message.
//
// Invariants:
//   - A put that was woken for space, and fails or does not need it, wakes the next waiter.
//   - A put into a channel that drops its oldest messages drops them until there is space, or no message is left. If
//     another sender uses the space first, the put drops one more message under the senders' lock. So it waits only for
//     memory that is in use outside the channel.
//   - The arena's lock is never taken under the senders' lock. A segment that may be appended is allocated before.
//
// Thread safety: any thread.
#pragma once

#include "channel/membership.h"
#include "channel/records.h"
#include "channel/watchers.h"
#include "platform/spin.h"

namespace shmtree::channel {

class Sending {
 public:
  Sending(const Control& control, RingTail& tail, Front& front, const Ends& ends, Watchers& watchers,
          Membership& membership) noexcept
      : control_(control), tail_(tail), front_(front), ends_(ends), watchers_(watchers), membership_(membership) {}

  bool has_space() noexcept { return tail_.has_space() || control_.drops_oldest(); }
  // Returns kClosed or kPeerDied if no receiver is left, even if there is space. If none was killed, this applies only
  // to a process that does not own a receiver, used or not. Counts as a use of the sending end.
  Status check_receivers();
  // Waits until at least `count` processes are attached as receivers. Counts as a use of the sending end. kTimeout.
  Status wait_for_receivers(std::uint64_t count, const WaitContext& wait);
  // Waits until a message of `bytes` could be put. The space may be gone again by the time of put(). Same errors as
  // put().
  Status wait_for_space(std::uint64_t bytes, const WaitContext& wait);
  // Waits for space for a message of `bytes`, then allocates its block. Another sender may take the space before put(),
  // which then waits again. Errors of wait_for_space() and Allocator::allocate(); kFull also if a stopped process keeps
  // the arena's lock.
  Result<OwnedBlock> reserve(std::uint64_t bytes, const WaitContext& wait);
  // Puts the message and returns its ticket. kFull: no space in time; kMessageTooLarge: over max_bytes; kClosed,
  // kPeerDied: the channel is full and no receiver is left. Consumes `message` only on success.
  Result<std::uint64_t> put(Outgoing& message, const WaitContext& wait);
  // Puts all messages, in order, with as few stores of `tail` as the space allows. On an error, `completed` is the
  // number that were put.
  Status put_many(std::span<Outgoing> messages, const WaitContext& wait);

 private:
  class SpaceWait;
  using Space = RingTail::Space;
  using Put = RingTail::Put;  // `count` is 0 if there was no space
  Result<Put> put_first(std::span<Outgoing> messages, const WaitContext& wait);
  Result<Put> put_some(std::span<Outgoing> messages, bool may_drop, const WaitContext& wait);
  // Drops the oldest message and counts it. False if there is none that can be received now.
  Result<bool> drop_oldest(const WaitContext& wait);
  // drop_oldest() in two steps, for a caller that holds the senders' lock. Under this lock, a caller may neither wait
  // nor take the arena's lock. Call try_drop_oldest() with that lock; it also returns false if the receivers' lock is
  // busy. Call finish() without the lock.
  struct Drop {
    Incoming message;
    Receipt receipt;
    bool dropped = false;
  };
  bool try_drop_oldest(Drop& drop, Identity me) noexcept;
  void drop_next(Drop& drop, Identity me) noexcept;
  void finish(Drop& drop) noexcept;
  Put drop_put_and_unlock(std::span<Outgoing> messages, Identity me, OwnedBlock& spare, Put put);
  // The arguments of RingTail::space_for() for a message. `may_grow` is false if there was no memory for another
  // segment.
  struct Need {
    std::uint64_t bytes = 0, referred_bytes = 0, unallocated = 0;
    bool may_grow = true;
  };
  Space space_for(const Need& need) noexcept {
    const auto depth = need.may_grow ? RingTail::Depth::kAtCounts : RingTail::Depth::kAtSlots;
    return tail_.space_for(need.bytes, need.referred_bytes, need.unallocated, depth);
  }
  // True for a message that needs no check().
  bool is_small(const Outgoing& message) const noexcept {
    return !message.block.valid() && message.size() <= control_.inline_bytes() && control_.shared.max_bytes == 0;
  }
  Status check(Outgoing& message, Identity me) const;
  Status refuse_at_once(std::uint64_t bytes, std::uint64_t referred_bytes) const;
  std::size_t count_sound(std::span<Outgoing> messages, Identity me) const;
  Error still_full() const;

  const Control control_;
  RingTail& tail_;
  Front& front_;
  const Ends& ends_;
  Watchers& watchers_;
  Membership& membership_;
  platform::Spinner spinner_;
};

}  // namespace shmtree::channel
