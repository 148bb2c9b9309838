// A descriptor that becomes readable when another one does, and is always writable.
//
// Poll loops use one descriptor for both directions of a connection, but neither an epoll nor a pipe can be writable
// without being readable. An eventfd can. The kernel signals it when the other descriptor becomes readable (aio, an
// IOCB_CMD_POLL request with an eventfd), so no thread of this process has to wait for that. A request fires once.
//
// Thread safety: one thread at a time uses an object. In a forked child, the object does nothing.
#pragma once

#include <linux/aio_abi.h>

#include <memory>

#include "platform/checked_fd.h"

namespace shmtree::platform {

class EventRelay {
 public:
  // kOs if the system refuses such requests: ENOSYS or EPERM mean a seccomp filter, EINVAL a kernel before 4.18.
  static Result<std::unique_ptr<EventRelay>> from(int source);
  EventRelay(const EventRelay&) = delete;
  EventRelay& operator=(const EventRelay&) = delete;
  ~EventRelay();

  int fd() const noexcept { return event_.number(); }
  // Makes the descriptor readable only once the source is readable again, or at once if it still is.
  void rearm() noexcept;
  // Leaves the descriptor open, because it now belongs to another file.
  void abandon() noexcept { event_.abandon(); }

 private:
  explicit EventRelay(int source);
  Status request() noexcept;

  CheckedFd event_;
  iocb request_{};
  aio_context_t context_ = 0;  // that of the pending request
  const int owner_;
};

}  // namespace shmtree::platform
