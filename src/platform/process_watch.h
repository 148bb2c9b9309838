// A descriptor for poll loops that is readable while a wake pipe is, and once one of the watched processes has ended.
//
// Descriptors of epolls, and of processes before Linux 6.9, all have one device and inode. So the epoll is ours if the
// pipe is in its set, and the descriptor of a process is ours if it is in the set as well.
#pragma once

#include <span>
#include <vector>

#include "platform/checked_fd.h"

namespace shmtree::platform {

class ProcessWatch {
 public:
  ProcessWatch() noexcept = default;
  // Watches `pipe`, which has to outlive this object. Code::kOs if the system refuses to watch processes: with EPERM,
  // EACCES or ENOSYS a seccomp filter, or a kernel before 5.3.
  static Result<ProcessWatch> around(const CheckedFd& pipe);
  ProcessWatch(ProcessWatch&&) noexcept = default;
  ProcessWatch& operator=(ProcessWatch&& other) noexcept;
  ~ProcessWatch() { reset(); }

  bool valid() const noexcept { return epoll_.valid(); }
  // False once the program has closed this descriptor or the descriptor of the pipe.
  bool is_ours() const noexcept;
  int fd() const noexcept { return epoll_.number(); }
  // Also watches these processes, and no others. Leaves out those that have ended already, or are in another PID
  // namespace. An error if the system, or a limit of this process, leaves out others; may throw std::bad_alloc.
  Status watch(std::span<const int> pids);
  // Closes its descriptors.
  void reset() noexcept;

 private:
  struct Watched {
    int pid;
    CheckedFd fd;
  };
  bool is_in_set(int fd) const noexcept;
  void close_watched(Watched& process) noexcept;

  const CheckedFd* pipe_ = nullptr;
  CheckedFd epoll_;
  std::vector<Watched> processes_;
};

}  // namespace shmtree::platform
