// A descriptor for poll loops that is readable while a reader has something to read. It is a wake pipe: a reader
// requests a byte, and the next process that puts sends it.
//
// Invariant: as long as its reader calls refresh() after each get, the open descriptor is readable while there is a
// message, or at the end of the stream. The request is a Dekker handshake: the reader sets the cursor's `asks` and
// checks the tail; a process that puts moves the tail and clears `asks`. A byte may come late, for a message that was
// read meanwhile.
//
// Coroutines have no descriptor of their own. Instead, their process requests one wake text at its hub. The request is
// a bit of `awaiting_messages` or `awaiting_space`, in the same handshake (Hubs).
//
// Thread safety: ring() and Hubs any thread; the rest one thread at a time.
#pragma once

#include "broadcast/cursors.h"
#include "platform/wake_pipe.h"

namespace shmtree::broadcast {

class Doorbell {
 public:
  // Opens the pipe and publishes its address in the cursor, which this process has claimed.
  Status open(Cursor& cursor);
  void close() noexcept { pipe_.close(); }
  // Also returns false once the program has closed the descriptor.
  bool is_open() const noexcept { return pipe_.is_ours(); }
  int fd() const noexcept { return pipe_.number(); }

  // Makes the descriptor readable: now if is_ready() returns true, otherwise when the next message is put.
  template <class IsReady>
  void refresh(Cursor& cursor, IsReady is_ready) noexcept {
    if (!is_open()) return;
    ask(cursor);
    if (is_ready()) pipe_.wake();
  }

  // Wakes all readers that requested a byte and that this process can reach. Call it after the store that publishes the
  // message.
  static void ring(const Cursors& cursors) noexcept;

 private:
  void ask(Cursor& cursor) noexcept;

  platform::WakePipe pipe_;
};

// The condition that processes await. Its number is part of the wake text.
enum class Awaited : std::uint64_t { kMessages = 0, kSpace = 1 };

// The hubs of the processes that await the next message of a ring, or space in it. A wake text names the ring and the
// condition.
class Hubs {
 public:
  Hubs(memory::Arena& arena, memory::BlockRef ring, Awaited what, memory::ParticipantSet& awaiting) noexcept
      : arena_(arena), ring_(ring), what_(what), awaiting_(awaiting) {}

  platform::WakeText name() const noexcept;
  // Asks the other processes to send one wake text to `hub`. After this call, the caller executes a full fence and
  // checks the condition.
  Status await(platform::WakeAddress hub);
  // Wakes the hubs that this process can reach. The caller executes a full fence between the stores that make the
  // condition true and this call. A bit of a dead process is removed once its slot is free.
  void wake() noexcept;

 private:
  bool wake(std::uint32_t slot) noexcept;
  bool is_free(std::uint32_t slot) const noexcept {
    return arena_.participants().is_status(slot, memory::ParticipantStatus::kFree);
  }

  memory::Arena& arena_;
  const memory::BlockRef ring_;
  const Awaited what_;
  memory::ParticipantSet& awaiting_;
};

}  // namespace shmtree::broadcast
