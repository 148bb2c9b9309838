// A descriptor by which poll loops see that a reader has something to read. It is a wake pipe: a reader asks for a
// byte, and the next process that puts sends it.
//
// Invariant: once it is open, and as long as its reader calls refresh() after each get, it is readable while there is a
// message, or at the end. The request is a Dekker handshake: the reader sets the cursor's `asks` and checks the tail; a
// process that puts moves the tail and takes `asks`. A byte may come late, for a message that was read meanwhile.
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

  // Makes it readable now if is_ready() returns true, else with the next message.
  template <class IsReady>
  void refresh(Cursor& cursor, IsReady is_ready) noexcept {
    if (!is_open()) return;
    ask(cursor);
    if (is_ready()) pipe_.wake();
  }

  // Wakes all readers that asked and that this process can reach. Call it after the store of what there is to read.
  static void ring(const Cursors& cursors) noexcept;

 private:
  void ask(Cursor& cursor) noexcept;

  platform::WakePipe pipe_;
};

}  // namespace shmtree::broadcast
