// A descriptor for poll loops that is readable while a wake pipe is readable, and once one of the watched processes has
// exited. A second one is also writable.
//
// All epoll descriptors share one device and inode, and before Linux 6.9 so do all descriptors of processes. So an
// epoll counts as ours if its set contains the pipe, and the descriptor of a process counts as ours if it is in that
// set as well.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "platform/checked_fd.h"
#include "platform/event_relay.h"

namespace shmtree::platform {

class ProcessWatch {
 public:
  ProcessWatch() noexcept = default;
  // Watches `pipe`, which must outlive this object. Code::kOs if the system refuses to watch processes: EPERM, EACCES
  // or ENOSYS mean a seccomp filter or a kernel before 5.3.
  static Result<ProcessWatch> around(const CheckedFd& pipe);
  ProcessWatch(ProcessWatch&&) noexcept = default;
  ProcessWatch& operator=(ProcessWatch&& other) noexcept;
  ~ProcessWatch() { reset(); }

  bool valid() const noexcept { return epoll_.valid(); }
  // False once the program has closed this descriptor or the descriptor of the pipe.
  bool is_ours() const noexcept;
  int fd() const noexcept { return epoll_.number(); }
  bool is_readable() const noexcept;
  // Returns a descriptor that becomes readable with fd(), and that is always writable. Opens it if there is none; kOs
  // as of EventRelay.
  Result<int> writable_fd();
  // Call this after the pipe was drained: writable_fd() stays readable until then.
  void rearm() const noexcept {
    if (relay_ != nullptr) relay_->rearm();
  }
  // Also watches exactly these processes. Skips processes that have exited already or are in another PID namespace.
  // Fails if the system, or a limit of this process, leaves out others; may throw std::bad_alloc.
  Status watch(std::span<const int> pids);
  // Closes its descriptors.
  void reset() noexcept;

 private:
  struct Watched {
    int pid;
    CheckedFd fd;
  };
  bool is_in_set(int fd) const noexcept;
  bool is_relay_ours() const noexcept;
  void close_watched(Watched& process) noexcept;

  const CheckedFd* pipe_ = nullptr;
  CheckedFd epoll_;
  std::unique_ptr<EventRelay> relay_;  // in the set too, without events
  std::vector<Watched> processes_;
};

}  // namespace shmtree::platform
