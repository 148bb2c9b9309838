// Putting messages. For a large message, reserve() waits for room and allocates a block, and the caller writes the
// frame there. put() publishes the message by storing `tail`; a small message goes into the ring itself.
//
// Invariants:
//   - A put that was woken for room and fails, or goes without it, wakes the next who waits.
//   - A put into a channel that drops its oldest messages waits only for what others keep: it receives messages until
//     there is room, or there are none. Where another puts into the room that it made, it makes room for itself under
//     the senders' lock.
//   - The arena's lock is never taken under the senders' one: a segment that is to follow is made before.
//
// Thread safety: any thread.
#pragma once

#include "channel/receiving.h"

namespace shmtree::channel {

class Sending {
 public:
  Sending(Parts& parts, Receiving& receiving) noexcept : parts_(parts), receiving_(receiving) {}

  bool has_room() noexcept { return parts_.tail.has_room() || parts_.control.drops_oldest(); }
  // kClosed, kPeerDied: nobody is left to receive, room or not; where none was killed, this process does not have that
  // end, used or not. It is a use of this end.
  Status check_receivers();
  // Waits until a message of `bytes` could be put now; it may be gone again by the time of put(). Same errors as put().
  Status wait_for_room(std::uint64_t bytes, const WaitContext& wait);
  // Waits for room for a message of `bytes`, then allocates its block. Another sender may take the room before put(),
  // which then waits again. Errors of wait_for_room() and Allocator::allocate();
  // kFull also when a stopped process keeps the arena's lock.
  Result<OwnedBlock> reserve(std::uint64_t bytes, const WaitContext& wait);
  // The ticket. kFull: no room in time; kMessageTooLarge: over max_bytes; kClosed, kPeerDied: full and nobody is left
  // to receive. `message` is consumed on success only.
  Result<std::uint64_t> put(Outgoing& message, const WaitContext& wait);
  // Puts all, in order, with as few stores of `tail` as room allows. On an error `completed` says how many went.
  Status put_many(std::span<Outgoing> messages, const WaitContext& wait);

 private:
  using Room = RingTail::Room;
  using Put = RingTail::Put;  // of none: there was no room
  Result<Put> put_first(std::span<Outgoing> messages, const WaitContext& wait);
  Result<Put> put_some(std::span<Outgoing> messages, bool may_drop, const WaitContext& wait);
  // For a message as RingTail::room_for() has it. With `may_grow` false there was no memory for another segment.
  Status wait_until_room(std::uint64_t bytes, std::uint64_t referred_bytes, std::uint64_t unallocated, bool may_grow,
                         const WaitContext& wait);
  Status check(Outgoing& message, Identity me) const;
  Status refuse_at_once(std::uint64_t bytes, std::uint64_t referred_bytes) const;
  std::size_t count_sound(std::span<Outgoing> messages, Identity me) const;
  Error still_full() const;

  Parts& parts_;
  Receiving& receiving_;
  Spinner spinner_;
};

}  // namespace shmtree::channel
