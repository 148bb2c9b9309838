// A descriptor for poll loops that can be read while another descriptor can, and once a process has ended.
#pragma once

#include <span>
#include <vector>

#include "platform/file.h"

namespace shmtree::platform {

class ProcessWatch {
 public:
  ProcessWatch() noexcept = default;
  // Watches `fd`, which stays the caller's and is closed after this.
  static Result<ProcessWatch> around(int fd);

  bool valid() const noexcept { return epoll_.valid(); }
  int fd() const noexcept { return epoll_.get(); }
  // Watches these processes besides, and no others. What cannot be watched is left out: a process that has ended
  // already, and all where the kernel, or a limit of this process, does not let us.
  void watch(std::span<const int> pids) noexcept;

 private:
  struct Watched {
    int pid;
    UniqueFd fd;
  };
  void stop(Watched& process) noexcept;

  UniqueFd epoll_;
  std::vector<Watched> processes_;
};

}  // namespace shmtree::platform
