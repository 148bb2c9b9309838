// What puts leave for a tap: who looks on at a channel without taking from it. A tap has a block of notes, and its
// holder bit is set in the blocks of the messages that they are of, so that these stay until it has read them. A tap
// that wants times has notes without frames, keeps no blocks, and gets the times of receipts as well.
//
// Order of stores, under the senders' lock:
//   put   note: ticket, put_ns, bytes, the inline frame, frame_bytes, block; the tap's holder bit; then `tail`
//   read  the tap looks at notes of tickets below `tail` only; it clears its bit, then the note's block, then `read` :=
//   get   under the receivers' lock, if `timed` is set: got_pid, got_thread, got_ns, then `head`. A tap that wants
//   times
//         looks at notes below `head`, and so is done with none that a receiver may write to
//   kill  before `tail`: recovery, which comes before the next put and before the message's block is used again, takes
//         back the bits of notes at or past `tail`. The tap's: recovery takes all bits of the dead, and stores tap := 0
//
// Invariants:
//   - Nobody waits for a tap. Where the last notes are unread, or blocks of `most_bytes` are kept for the tap, a put
//     leaves none, which the tap sees by the ticket.
//   - A note's block is 0, or the tap's bit of it is set, or about to be by a put that is not in the channel yet.
//   - `tap` names a block as long as the tap lives, and `timed` is set while that one wants times: both are set and
//     taken back under the senders' and the receivers' lock, before the block goes.
//
// Thread safety: under the senders' lock; note_receipt() under the receivers'.
#pragma once

#include <optional>

#include "channel/message.h"

namespace shmtree::channel {

class TapNotes {
 public:
  // The notes in the block that a word of shared memory names; none when there can be none.
  static std::optional<TapNotes> at(const Control& control, std::uint64_t packed) noexcept;

  // A put is about to publish the slots of these tickets.
  void add(const Segment& segment, std::uint64_t first, std::uint64_t count) const noexcept;
  // The message of that ticket is about to be received.
  void note_receipt(std::uint64_t ticket) const noexcept;
  // For recovery: the puts of tickets from `tail` on did not take place.
  void forget_from(std::uint64_t tail) const noexcept;

  TapHeader& header() const noexcept { return *header_; }
  TapNote& of(std::uint64_t ticket) const noexcept {
    auto* first = reinterpret_cast<std::byte*>(header_ + 1);
    return *reinterpret_cast<TapNote*>(first + (ticket & (count_ - 1)) * note_bytes_);
  }
  std::uint64_t count() const noexcept { return count_; }

 private:
  TapNotes(const Control& control, TapHeader* header, std::uint64_t count, bool times_only) noexcept
      : control_(control),
        header_(header),
        count_(count),
        times_only_(times_only),
        note_bytes_(tap_note_bytes(control.slot_bytes, times_only)) {}
  void add_one(const RingSlot& slot, std::uint64_t ticket, std::int64_t now) const noexcept;
  void add_times(std::uint64_t ticket, std::int64_t now, int thread) const noexcept;

  const Control control_;
  TapHeader* header_;
  std::uint64_t count_;  // as it was checked, and so are these
  bool times_only_;
  std::uint64_t note_bytes_;
};

}  // namespace shmtree::channel
