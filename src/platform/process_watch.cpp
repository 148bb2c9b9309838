#include "platform/process_watch.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <new>

namespace shmtree::platform {
namespace {

bool add_readable(int epoll, int fd) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

// Closed by an exec, as all of its kind.
UniqueFd open_process(int pid) noexcept {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace

Result<ProcessWatch> ProcessWatch::around(int fd) {
  ProcessWatch made;
  made.epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!made.epoll_.valid()) return os_error("epoll_create1", errno);
  if (!add_readable(made.epoll_.get(), fd)) return os_error("epoll_ctl of a wake-up socket", errno);
  return made;
}

// A forked child may have the descriptor open, which would keep it in the set.
void ProcessWatch::stop(Watched& process) noexcept {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, process.fd.get(), nullptr);
}

void ProcessWatch::watch(std::span<const int> pids) noexcept {
  const int saved = errno;
  std::erase_if(processes_, [&](Watched& known) {
    const bool gone = std::find(pids.begin(), pids.end(), known.pid) == pids.end();
    if (gone) stop(known);
    return gone;
  });
  try {
    processes_.reserve(pids.size());
  } catch (const std::bad_alloc&) {
  }
  for (const int pid : pids) {
    const auto is_it = [pid](const Watched& known) { return known.pid == pid; };
    if (std::any_of(processes_.begin(), processes_.end(), is_it)) continue;
    if (processes_.size() == processes_.capacity()) break;
    UniqueFd process = open_process(pid);
    if (process.valid() && add_readable(epoll_.get(), process.get())) processes_.push_back({pid, std::move(process)});
  }
  errno = saved;
}

}  // namespace shmtree::platform
