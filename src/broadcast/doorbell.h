// A descriptor by which poll loops see that a reader has something to read: a wake pipe, to which a process that puts
// sends a byte when it was asked to.
//
// Invariant: once it was asked for, and as long as its reader looks after it (refresh, after each get), it is readable
// while there is a message, or the end. The ask is a Dekker handshake: the reader sets the cursor's `asks` and looks at
// the tail, who puts moves the tail and takes `asks` back. A byte may come late, for a message that was read meanwhile.
//
// Thread safety: ring() any thread; the rest one thread at a time.
#pragma once

#include "broadcast/cursors.h"
#include "platform/wake_pipe.h"

namespace shmtree::broadcast {

class Doorbell {
 public:
  // Opens the pipe and publishes its address in the cursor, which this process has claimed.
  Status open(Cursor& cursor);
  void close() noexcept { pipe_.close(); }
  // False also once the program has closed the descriptor.
  bool is_open() const noexcept { return pipe_.is_ours(); }
  int fd() const noexcept { return pipe_.number(); }

  // Readable from now on if is_ready() says so, else from the next message on.
  template <class IsReady>
  void refresh(Cursor& cursor, IsReady is_ready) noexcept {
    if (!is_open()) return;
    ask(cursor);
    if (is_ready()) pipe_.wake();
  }

  // Rings those of all readers that asked, as far as this process reaches them. After what there is to read was stored.
  static void ring(const Cursors& cursors) noexcept;

 private:
  void ask(Cursor& cursor) noexcept;

  platform::WakePipe pipe_;
};

}  // namespace shmtree::broadcast
