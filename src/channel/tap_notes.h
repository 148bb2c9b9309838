// The notes that puts leave for a tap, which observes a channel without receiving from it. A tap has a block of notes.
// Its holder bit is set in the blocks of the messages that they describe, so that the blocks stay until the tap has
// read them. A tap that wants times has notes without frames, pins no blocks, and also gets the times of receipts.
//
// Order of stores, under the senders' lock:
//   put   the note's ticket, put_ns, bytes, frame_bytes, inline frame or block; the tap's holder bit; then `tail`
//   read  the tap reads only notes of tickets below `tail`; it clears its bit, then the note's block, then stores
//         `read`
//   get   under the receivers' lock, if `timed` is set: got_pid, got_thread, got_ns, then `head`. A tap that wants
//         times reads only notes below `head`, so it never finishes a note that a receiver may still write to
//   kill  before `tail`: recovery runs before the next put and before the message's block is reused, and clears the
//         bits of notes at or past `tail`. Death of the tap: recovery clears all bits of the dead and stores tap := 0
//
// Invariants:
//   - No call waits for a tap. If all notes are unread, or blocks of `max_bytes` are pinned for the tap, a put leaves
//     no note. The tap detects that by the ticket.
//   - If a note names a block, the tap's bit is set in it, or a put that is not in the channel yet is about to set it.
//   - `tap` names a block as long as the tap lives, and `timed` is set while that tap wants times. Both are set and
//     cleared under both locks, before the block is freed.
//
// Thread safety: call it under the senders' lock, and note_receipt() under the receivers' lock.
#pragma once

#include <bit>
#include <optional>

#include "channel/layout.h"
#include "memory/mapping.h"
#include "platform/dcheck.h"

namespace shmtree::channel {

class TapNotes {
 public:
  // Returns the notes in the block that a word of shared memory names, or nothing if the word or the block is invalid.
  static std::optional<TapNotes> at(const memory::BlockTable& blocks, std::uint64_t slot_bytes,
                                    std::uint64_t packed) noexcept;

  // Writes the notes of a put that is about to publish the slots of these tickets.
  void add(const Segment& segment, std::uint64_t first, std::uint64_t count) const noexcept;
  // Writes the times of the message of that ticket, which is about to be received.
  void note_receipt(std::uint64_t ticket) const noexcept;
  // Removes the notes of tickets from `tail` on, since their puts did not take place. Called by recovery.
  void forget_from(std::uint64_t tail) const noexcept;

  TapHeader& header() const noexcept { return *header_; }
  TapNote& of(std::uint64_t ticket) const noexcept {
    SHMTREE_DCHECK(std::has_single_bit(count_));
    auto* first = reinterpret_cast<std::byte*>(header_ + 1);
    return *reinterpret_cast<TapNote*>(first + (ticket & (count_ - 1)) * note_bytes_);
  }
  std::uint64_t count() const noexcept { return count_; }

 private:
  TapNotes(const memory::BlockTable& blocks, std::uint64_t slot_bytes, TapHeader* header, std::uint64_t count,
           bool times_only) noexcept
      : blocks_(&blocks),
        header_(header),
        count_(count),
        times_only_(times_only),
        inline_bytes_(inline_bytes(slot_bytes)),
        note_bytes_(tap_note_bytes(slot_bytes, times_only)) {}
  void add_one(const RingSlot& slot, std::uint64_t ticket, std::int64_t now) const noexcept;
  void add_times(std::uint64_t ticket, std::int64_t now, int thread) const noexcept;

  const memory::BlockTable* blocks_;
  TapHeader* header_;
  std::uint64_t count_;  // checked, like the next three
  bool times_only_;
  std::uint64_t inline_bytes_;
  std::uint64_t note_bytes_;
};

}  // namespace shmtree::channel
