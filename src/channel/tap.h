// Looking on at a channel: every message that is put is seen here, too, as long as there is room for notes of them
// (tap_notes.h); the others are counted. Nothing is taken from those who receive, and nobody waits for a tap.
//
// A channel has one tap at a time. One that wants times sees no messages, but when, and by whom, each was put and
// received.
//
// A tap keeps the channel's memory, and is at neither end of it. What it reads are the messages themselves, which their
// receivers may write to as they read: so it is what they were when they were put only where the tap is first.
//
// Invariants:
//   - A tap is a participant of its own, besides its process: so no hold that the process has, or lets go of, is the
//     tap's. It lives as long as its process, and not as that one's children.
//   - A note's block stays as long as the tap's bit of it is set. It is collected by the tap only if its message has
//     left the window; else who receives it sees to that.
//
// Thread safety: one thread at a time.
#pragma once

#include <vector>

#include "channel/parts.h"
#include "channel/tap_notes.h"

namespace shmtree::channel {

class Tap {
 public:
  enum class Wants { kMessages, kTimes };
  // From the next put on. kInvalid where there is a tap; kOutOfSharedMemory, kFull: no room for notes; kUnavailable: no
  // slot for one more participant.
  static Result<std::shared_ptr<Tap>> open(Parts& parts, std::shared_ptr<const void> keeps, Wants wants,
                                           const WaitContext& wait);
  ~Tap();
  Tap(const Tap&) = delete;
  Tap& operator=(const Tap&) = delete;

  // A message, whose frame stays where it is until release().
  struct Seen {
    std::uint64_t ticket;
    std::int64_t put_ns;  // monotonic clock
    std::span<const std::byte> frame;
    BlockRef block;  // that the frame is in; none for one that is in the note
  };
  // The next few of those that were put; none when there is none now, and in a forked child. release() comes between
  // two calls. May throw std::bad_alloc.
  std::vector<Seen> take(std::size_t most);
  // When a message was put and received, by the monotonic clock, and by which process and thread.
  struct Times {
    std::uint64_t ticket;
    std::int64_t put_ns;
    int put_pid;
    int put_thread;
    std::int64_t got_ns;  // 0: not yet
    int got_pid;
    int got_thread;
  };
  // Likewise, of those that were received; or also of the others. By a tap that wants times.
  std::vector<Times> take_times(std::size_t most, bool also_queued);
  void release() noexcept;

  // Puts that were found to have left no note.
  std::uint64_t missed() const noexcept { return missed_; }
  // Whether the stream is over, or stop() was called, and everything was taken. Looks for the dead.
  bool is_over(const WaitContext& wait);
  // Puts leave no more notes. kTimeout: a stopped process keeps a lock of the channel.
  Status stop(const WaitContext& wait);

 private:
  Tap(Parts& parts, std::shared_ptr<const void> keeps, memory::ReservedSlot slot, BlockRef block, const TapNotes& notes,
      Wants wants) noexcept
      : parts_(parts), keeps_(std::move(keeps)), slot_(std::move(slot)), block_(block), notes_(notes), wants_(wants) {}
  bool is_mine() const noexcept {
    return slot_.lock.valid() && parts_.control.arena.current_identity() != memory::kNobody;
  }
  std::uint64_t end() const noexcept;
  template <class Look>
  void take_notes(std::uint64_t end, std::size_t most, Look look);
  bool look_at(const TapNote& note, Seen& seen) const noexcept;
  void let_go(TapNote& note, std::uint64_t ticket) noexcept;

  Parts& parts_;
  const std::shared_ptr<const void> keeps_;  // the channel
  memory::ReservedSlot slot_;                // the lock of none in a forked child
  const BlockRef block_;                     // of the notes
  const TapNotes notes_;
  const Wants wants_;
  std::uint64_t next_ = 0;   // ticket
  std::uint64_t taken_ = 0;  // tickets before it that were not released
  std::uint64_t missed_ = 0;
  std::optional<std::uint64_t> stopped_at_{};
};

}  // namespace shmtree::channel
