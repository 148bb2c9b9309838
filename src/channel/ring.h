// The ring: a chain of segments of slots. Messages are put at its tail and received at its head.
#pragma once

#include <iterator>
#include <span>

#include "channel/control.h"
#include "channel/message.h"
#include "memory/held_locks.h"
#include "platform/dcheck.h"

namespace shmtree::channel {

constexpr std::size_t kMaxAtOnce = 64;  // maximum number of messages that are put or collected under one lock

// The tail of the ring, where messages are put. It decides if there is space, writes slots, and appends segments.
//
// Order of stores: a message's slot, then `tail`; the successor's block complete, then the last segment's `next`. The
// second store of each pair is the commit point.
//
// Invariants:
//   - A message is put only while tail - head + `also_queued` is below `limit`. No slot is written that a receiver may
//     read, since `cached_head` is at most head.
//   - The ring stops growing while the arena still has memory for one more segment. Memory returns by whole segments,
//     so a ring that had used up the arena would make no space until its first segment is received. Growth stops by
//     setting `limit` to the number of queued messages. It leaves memory to put one message for each one that is
//     received.
//
// Thread safety: any thread, except where a comment says "under the senders' lock".
class RingTail {
 public:
  explicit RingTail(const Control& control) noexcept : control_(control) {}

  //   kYes           there is space, as far as `limit` shows it (kRelieved: once `limit` is raised again)
  //   kFull          as many messages as `capacity`, or the end is reserved
  //   kFullOfBytes   over max_bytes       kNeedsSegment  no free slot
  //   kFullOfMemory  the message, or a longer ring, would take memory that other users of the arena need
  enum class Space { kYes, kRelieved, kFull, kFullOfBytes, kFullOfMemory, kNeedsSegment, kDamaged, kShutDown };
  // Depth of a check. Without the lock, pass kAtSlots only if the last segment matters, since its block may be reused
  // meanwhile.
  enum class Depth { kLocked, kAtCounts, kAtSlots };
  // Checks if a message can be stored at `tail` now. Its frame has `bytes`, of which `unallocated` have no block yet,
  // and it refers to other blocks of `referred_bytes`. Without the lock, the answer is true at some instant of the
  // call. Sets `ring` to the last segment.
  Space space_for(std::uint64_t bytes, std::uint64_t referred_bytes, std::uint64_t unallocated, Depth depth,
                  Segment* ring = nullptr) noexcept;
  // Counts the puts of this process from now on. Each put is counted by the store that publishes it. If the process
  // dies in a put, recovery finishes its count before any other process can put. So the count is exact for every put.
  void count_puts() noexcept { counts_.store(true, std::memory_order_relaxed); }
  // Returns the number of counted puts. Needs no lock.
  static std::uint64_t counted(const ChannelHeader& shared) noexcept;
  // Completes the count of a put in progress, if there is one: it took place or it did not. Under the lock.
  static void finish_count(ChannelHeader& shared) noexcept;
  bool has_space() noexcept {
    const Space space = space_for(1, 0, 0, Depth::kAtCounts);  // the smallest message
    return space == Space::kYes || space == Space::kRelieved;
  }

  struct Put {
    Space space;  // kYes: `count` messages were put
    std::size_t count = 0;
    std::uint64_t first = 0;    // ticket
    std::uint64_t grow_to = 0;  // slots of the segment that put() needs; 0: none
    bool watched = false;       // a watcher wants a byte for each message
    bool space_left = false;
  };
  // Puts the first few of `messages` that there is space for, with one store of `tail`. If there is no slot, `spare`
  // becomes the next segment. Under the senders' lock.
  Put put(std::span<Outgoing> messages, Identity me, OwnedBlock& spare) noexcept;
  // Allocates a segment of `slots` slots, or of fewer if there is no memory for that many. Does not wait for memory,
  // because the messages in the ring may occupy all of it. Call it without the senders' lock, under which the arena's
  // lock is never taken.
  Result<OwnedBlock> new_segment(std::uint64_t slots, const WaitContext& wait) const;
  // Returns why there is no last segment to write to.
  Error no_ring() const;
  // Returns the ticket after that of the last message that this process put as `me`; 0 if there is none. A forked child
  // does not own its parent's messages.
  std::uint64_t sent_end(Identity me) const noexcept {
    const std::uint64_t end = sent_end_.load(std::memory_order_acquire);
    return sent_by_.load(std::memory_order_relaxed) == me ? end : 0;
  }

 private:
  bool leaves_memory(std::uint64_t queued_bytes, std::uint64_t unallocated) const noexcept;
  bool has_memory_for_ring(std::uint64_t slots) const noexcept;
  bool may_grow(const Segment& last, std::uint64_t queued) noexcept;
  void link(const Segment& last, OwnedBlock segment, std::uint64_t tail) noexcept;
  std::size_t write(const Segment& segment, std::span<Outgoing> messages, Identity me, bool watched) noexcept;
  Segment last_segment() noexcept {
    return known_last_.at(control_, platform::load_relaxed(control_.shared.tail_segment));
  }

  const Control control_;
  KnownSegment known_last_;  // under the senders' lock
  std::atomic<bool> counts_{false};
  // Under the senders' lock. In a line of their own, since every put writes them.
  alignas(64) std::atomic<std::uint64_t> sent_end_{0};
  std::atomic<Identity> sent_by_{memory::kNoIdentity};
};

// The result of an attempt to receive under the receivers' lock: the segments to release after unlocking, and why this
// process received no message.
struct Receipt {
  std::uint64_t spent[4];  // packed refs of segments; the first `spent_count` are set
  std::size_t spent_count = 0;
  bool damaged = false;
  bool starved = false;      // the next message stays: this process has no memory, or address space, for it
  std::uint64_t ticket = 0;  // of that message
  std::uint64_t wanted = 0;  // bytes that lack address space; 0: memory was missing

  bool is_left() const noexcept { return damaged || starved; }
  bool starve(std::uint64_t of, std::uint64_t bytes) noexcept {
    SHMTREE_DCHECK(!starved);
    starved = true;
    ticket = of;
    wanted = bytes;
    return false;
  }
  // Releases the segments that were used up. Call it after unlocking.
  void release_spent(Arena& arena) const noexcept {
    SHMTREE_DCHECK(spent_count <= std::size(spent));
    for (std::size_t i = 0; i < spent_count; ++i) arena.reclaimer().collect(memory::unpack(spent[i]));
  }
  // Returns why the first message was not received.
  Error error(const memory::Arena& arena) const;
};

// The head of the ring, where messages are received.
//
// Order of stores: the holder bit of a message's block, then `head`. The message is in the window until the store of
// `head`, after which its slot may be overwritten.
//
// Thread safety: any thread, except where a comment says "under the receivers' lock".
class RingHead {
 public:
  RingHead(const Control& control, std::shared_ptr<Arena> arena) noexcept
      : control_(control), arena_(std::move(arena)) {}

  // True if there is a message in the ring or in a returned record; size() is their number.
  bool has_messages() const noexcept {
    const ChannelHeader& shared = control_.shared;
    return platform::load_seq_cst(shared.tail) != platform::load_seq_cst(shared.head) ||
           platform::load_seq_cst(shared.returned) != 0;
  }
  std::uint64_t size() const noexcept;

  // Receives the first message of the ring. False if there is none, or none that this process can map. Under the
  // receivers' lock, as the functions below.
  bool receive(Incoming& out, Identity me, Receipt& receipt) noexcept;
  // Passes the inline frames of the first messages to visit(frame), and receives each one for which it returns true.
  // Stops after `most` messages, or before any other one. Returns the number of messages received.
  template <class Visit>
  std::size_t receive_run(std::size_t most, Receipt& receipt, const Visit& visit) noexcept {
    std::size_t count = 0;
    for (; count < most; ++count) {
      const RingSlot* slot = first(receipt);
      if (slot == nullptr || platform::load_once(slot->block) != 0) break;
      const std::uint64_t bytes = platform::load_once(slot->bytes);
      if (bytes > control_.inline_bytes() || !visit(std::span(slot->inline_data(), bytes))) break;
      advance(bytes);
    }
    return count;
  }
  // Returns the slot at `head`, or null if the ring is empty or damaged. Moves to the next segment when the first one
  // is used up; the caller releases the old one after unlocking.
  const RingSlot* first(Receipt& receipt) noexcept;
  // Copies the message's slot into `out` and, if it has a block, sets the holder bit. Advances nothing. False if this
  // process cannot hold the block, or cannot map it and every block that it refers to; another process may.
  bool hold(const RingSlot& slot, Identity me, std::uint32_t attempts, Incoming& out, Receipt& receipt) noexcept;
  // Does the same for the message of a record, which an earlier receiver has had.
  bool hold_again(const Record& record, Identity me, std::uint32_t attempts, Incoming& out, Receipt& receipt) noexcept {
    out.came_back_ = hold(record.slot(), me, attempts, out, receipt);
    out.failed_before_ = platform::load_relaxed(record.failed_builds);
    return out.came_back_;
  }
  // Marks the first message, which counts as `bytes`, as received.
  void advance(std::uint64_t bytes) noexcept {
    SHMTREE_DCHECK(memory::HeldLocks::contains(control_.shared.receivers_lock));
    ChannelHeader& shared = control_.shared;
    platform::store_relaxed(shared.bytes_out, platform::load_relaxed(shared.bytes_out) + bytes);
    if (platform::load_relaxed(shared.timed) != 0) [[unlikely]]
      note_receipt();
    platform::store_release(shared.head, platform::load_relaxed(shared.head) + 1);  // the slot may be overwritten
  }

 private:
  void fetch_next(std::uint64_t bytes) const noexcept;
  void note_receipt() const noexcept;

  const Control control_;
  const std::shared_ptr<Arena> arena_;  // shared with messages that hold blocks
  KnownSegment known_first_;            // under the receivers' lock
};

}  // namespace shmtree::channel
