// The end of the ring that messages are received at.
//
// Order of stores: the holder bit of a message's block, then `head`. Until then the message is in the window, and from
// then on its slot may be written again.
//
// Thread safety: any thread; what says so, under the receivers' lock.
#pragma once

#include <iterator>

#include "channel/chains.h"
#include "channel/message.h"

namespace shmtree::channel {

// What a look under the receivers' lock leaves to do without it, and why it found nothing that this process can have.
struct Receipt {
  BlockRef spent[4];  // segments
  std::size_t spent_count = 0;
  bool damaged = false;
  bool starved = false;      // the next message was left: this process has no memory, or addresses, for it
  std::uint64_t ticket = 0;  // of that message
  std::uint64_t wanted = 0;  // bytes that there are no addresses for; 0: memory was missing

  bool is_left() const noexcept { return damaged || starved; }
  bool starve(std::uint64_t of, std::uint64_t bytes) noexcept {
    starved = true;
    ticket = of;
    wanted = bytes;
    return false;
  }
  // After unlocking: gives back the segments that were used up.
  void release_spent(Arena& arena) const noexcept {
    for (std::size_t i = 0; i < spent_count; ++i) arena.reclaimer().collect(spent[i]);
  }
  // Why the first message was not received, though there is one.
  Error error() const;
};

class RingHead {
 public:
  RingHead(const Control& control, std::shared_ptr<Arena> arena) noexcept
      : control_(control), arena_(std::move(arena)) {}

  // Whether there is a message in the ring, or one that was returned, and how many there are.
  bool has_messages() const noexcept {
    const ChannelHeader& shared = control_.shared;
    return platform::load_full(shared.tail) != platform::load_full(shared.head) ||
           platform::load_full(shared.returned) != 0;
  }
  std::uint64_t size() const noexcept;

  // Under the receivers' lock.
  // The first message of the ring; false when there is none, or none that this process can have.
  bool receive(Incoming& out, Identity me, Receipt& receipt) noexcept;
  // Its parts. The slot at `head`, or null when the ring is empty or damaged. Moves to the next segment when the first
  // is used up; the one left behind is released after unlocking.
  const RingSlot* first(Receipt& receipt) noexcept;
  // Copies what the slot says into `out` and, for a block, sets the holder bit. Nothing has moved yet. False when this
  // process cannot hold the block, or map it and all that it refers to: another may.
  bool hold(const RingSlot& slot, Identity me, std::uint32_t attempts, Incoming& out, Receipt& receipt) noexcept;
  // The first message, of `bytes`, was received.
  void advance(std::uint64_t bytes) noexcept {
    ChannelHeader& shared = control_.shared;
    platform::store_relaxed(shared.bytes_out, platform::load_relaxed(shared.bytes_out) + bytes);
    platform::store_release(shared.head, platform::load_relaxed(shared.head) + 1);  // the slot may be written again
  }

 private:
  void fetch_next(std::uint64_t bytes) const noexcept;

  const Control control_;
  const std::shared_ptr<Arena> arena_;  // as messages that are held keep it
  KnownSegment known_first_;            // under the receivers' lock
};

}  // namespace shmtree::channel
