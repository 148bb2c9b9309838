// A descriptor by which poll loops see that a reader has something to read: a socket, to which whoever puts sends a
// byte when it was asked to.
//
// Invariant: once it was asked for, and as long as its reader looks after it (refresh, after each get), it is readable
// while there is a message, or the end. The ask is a Dekker handshake: the reader sets the cursor's `asks` and looks at
// the tail, who puts moves the tail and takes `asks` back. A byte may come late, for a message that was read meanwhile.
//
// Thread safety: ring() any thread; the rest one thread at a time.
#pragma once

#include "broadcast/cursors.h"
#include "platform/wake_socket.h"

namespace shmtree::broadcast {

class Doorbell {
 public:
  // Of the cursor of that number, which this process has claimed as `owner`.
  // kNeeded: an error if this process cannot ring.
  Status open(memory::BlockRef ring, const Cursors& cursors, std::uint32_t number, platform::Wakes wakes);
  void close() noexcept { fd_.reset(); }
  // False also once the program has closed the descriptor.
  bool is_open() const noexcept { return fd_.is_ours(); }
  int fd() const noexcept { return fd_.number(); }

  // Readable from now on if is_ready() says so, else from the next message on.
  template <class IsReady>
  void refresh(memory::BlockRef ring, const Cursors& cursors, std::uint32_t number, IsReady is_ready) noexcept {
    if (!is_open()) return;
    ask(cursors.at(number));
    if (is_ready()) ring_one(ring, cursors, number);
  }

  // Rings those of all readers that asked. After what there is to read was stored.
  static void ring(memory::BlockRef ring, const Cursors& cursors) noexcept;

 private:
  void ask(Cursor& cursor) noexcept;
  static void ring_one(memory::BlockRef ring, const Cursors& cursors, std::uint32_t number) noexcept;

  platform::CheckedFd fd_;
  bool can_ring_ = false;
};

}  // namespace shmtree::broadcast
