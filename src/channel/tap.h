// A tap observes a channel: it sees every message that is put, as long as there is space for notes (tap_notes.h), and
// counts the others. It takes no message from receivers, and no call waits for a tap.
//
// A channel has one tap at a time. A tap that wants times sees no messages. It sees when each message was put and
// received, and by which process and thread.
//
// A tap keeps the channel's memory, and is not attached to either end. It reads the messages themselves, not copies,
// and receivers may write to those. So a message is unchanged only if the tap reads it before its receiver does.
//
// Invariants:
//   - A tap is a participant of its own, besides its process, so its pins are separate from those of the process. It
//     lives as long as its process, and does not belong to forked children.
//   - A note's block is kept as long as the tap's holder bit is set. The tap frees it only if its message has left the
//     window; otherwise the receiver frees it.
//
// Thread safety: one thread at a time.
#pragma once

#include <vector>

#include "channel/ends.h"
#include "channel/tap_notes.h"

namespace shmtree::channel {

class Tap {
 public:
  enum class Wants { kMessages, kTimes };
  // Opens a tap that begins with the next put. Waits for memory only briefly. Errors:
  //   kInvalid            the channel has a tap
  //   kOutOfSharedMemory  no memory for even a few notes
  //   kUnavailable        no free participant slot
  //   kTimeout            a stopped process has a lock of the channel
  static Result<std::shared_ptr<Tap>> open(const Control& control, const Ends& ends, std::shared_ptr<const void> keeps,
                                           Wants wants, const WaitContext& wait);
  ~Tap();
  Tap(const Tap&) = delete;
  Tap& operator=(const Tap&) = delete;

  // A message. Its frame is valid until release().
  struct Seen {
    std::uint64_t ticket;
    std::int64_t put_ns;  // monotonic clock
    std::span<const std::byte> frame;
    BlockRef block;  // block of the frame; none if the frame is in the note
  };
  // Returns the next messages, at most `most`. Empty if there is none now, and in a forked child. Call release()
  // between two calls. May throw std::bad_alloc.
  std::vector<Seen> take(std::size_t most);
  // Time at which a message was put and received, by the monotonic clock, and the process and thread that did so.
  struct Times {
    std::uint64_t ticket;
    std::int64_t put_ns;
    int put_pid;
    int put_thread;
    std::int64_t got_ns;  // 0: not yet
    int got_pid;
    int got_thread;
  };
  // Returns the times of the next received messages, with `also_queued` of queued ones as well. Only for a tap that
  // wants times.
  std::vector<Times> take_times(std::size_t most, bool also_queued);
  void release() noexcept;

  // Number of puts that left no note.
  std::uint64_t missed() const noexcept { return missed_; }
  // True if the stream is over, or stop() was called, and all notes were taken. Checks for deaths.
  bool is_over(const WaitContext& wait);
  // Ends the tap: later puts leave no notes. kTimeout: a stopped process keeps a lock of the channel.
  Status stop(const WaitContext& wait);

 private:
  Tap(const Control& control, const Ends& ends, std::shared_ptr<const void> keeps, memory::ReservedSlot slot,
      BlockRef block, const TapNotes& notes, Wants wants) noexcept
      : control_(control),
        ends_(ends),
        keeps_(std::move(keeps)),
        slot_(std::move(slot)),
        block_(block),
        notes_(notes),
        wants_(wants) {}
  bool is_mine() const noexcept {
    return slot_.lock.valid() && control_.arena.current_identity() != memory::kNoIdentity;
  }
  std::uint64_t end() const noexcept;
  template <class Look>
  void take_notes(std::uint64_t end, std::size_t most, Look look);
  bool look_at(const TapNote& note, Seen& seen) const noexcept;
  void release_note(TapNote& note, std::uint64_t ticket) noexcept;

  const Control control_;
  const Ends& ends_;
  const std::shared_ptr<const void> keeps_;  // the channel
  memory::ReservedSlot slot_;                // holds no lock in a forked child
  const BlockRef block_;                     // block of the notes
  const TapNotes notes_;
  const Wants wants_;
  std::uint64_t next_ = 0;   // ticket
  std::uint64_t taken_ = 0;  // number of tickets before next_ that were not released
  std::uint64_t missed_ = 0;
  std::optional<std::uint64_t> stopped_at_{};
};

}  // namespace shmtree::channel
