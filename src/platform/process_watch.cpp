#include "platform/process_watch.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "platform/machine.h"

namespace shmtree::platform {
namespace {

bool set_events(int epoll, int operation, int fd, std::uint32_t events) noexcept {
  epoll_event event{};
  event.events = events;
  return epoll_ctl(epoll, operation, fd, &event) == 0;
}

bool set_readable(int epoll, int operation, int fd) noexcept {
  return set_events(epoll, operation, fd, EPOLLIN);
}

// An exec closes such descriptors by default.
UniqueFd open_process(int pid) noexcept {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

Error open_process_error(int pid) {
  Error error = os_error("pidfd_open of process " + std::to_string(pid), errno);
  if (error.os_errno == EPERM || error.os_errno == EACCES || error.os_errno == ENOSYS) {
    error.message +=
        ": without this system call the descriptor would not become readable when the last peer ends. Allow pidfd_open "
        "(Linux 5.3 or later), for example in the seccomp profile of the container, or wait without such a descriptor: "
        "in get(), in a coroutine, or with shmtree.wait() (in C++ shmtree::wait())";
  }
  return error;
}

// Fails if the system cannot watch processes at all, before there is one to watch.
Status check_system() {
  const int me = process_id();
  if (open_process(me).valid()) return success();
  return open_process_error(me);
}

}  // namespace

Result<ProcessWatch> ProcessWatch::around(const CheckedFd& pipe) {
  if (Status can = check_system(); !can) return std::move(can).error();
  ProcessWatch watch;
  watch.pipe_ = &pipe;
  watch.epoll_ = CheckedFd(UniqueFd(epoll_create1(EPOLL_CLOEXEC)), FdRange::kSelectable);
  if (!watch.epoll_.valid()) return os_error("epoll_create1", errno);
  if (!set_readable(watch.epoll_.number(), EPOLL_CTL_ADD, pipe.number())) {
    return os_error("epoll_ctl of a wake pipe", errno);
  }
  return watch;
}

ProcessWatch& ProcessWatch::operator=(ProcessWatch&& other) noexcept {
  if (this != &other) {
    reset();
    pipe_ = std::exchange(other.pipe_, nullptr);
    epoll_ = std::move(other.epoll_);
    relay_ = std::move(other.relay_);
    processes_ = std::move(other.processes_);
  }
  return *this;
}

bool ProcessWatch::is_in_set(int fd) const noexcept {
  const int saved = errno;
  const bool is = set_readable(epoll_.number(), EPOLL_CTL_MOD, fd);  // changes nothing
  errno = saved;
  return is;
}

bool ProcessWatch::is_relay_ours() const noexcept {
  if (relay_ == nullptr) return true;
  const int saved = errno;
  const bool is = set_events(epoll_.number(), EPOLL_CTL_MOD, relay_->fd(), 0);
  errno = saved;
  return is;
}

bool ProcessWatch::is_ours() const noexcept {
  return epoll_.is_ours() && pipe_->is_ours() && is_in_set(pipe_->number()) && is_relay_ours();
}

bool ProcessWatch::is_readable() const noexcept {
  pollfd watched{.fd = fd(), .events = POLLIN, .revents = 0};
  return poll(&watched, 1, 0) > 0;
}

Result<int> ProcessWatch::writable_fd() {
  if (relay_ == nullptr) {
    auto relay = EventRelay::from(epoll_.number());
    if (!relay) return std::move(relay).error();
    if (!set_events(epoll_.number(), EPOLL_CTL_ADD, (*relay)->fd(), 0))
      return os_error("epoll_ctl of an eventfd", errno);
    relay_ = std::move(*relay);
  }
  return relay_->fd();
}

// Removes the descriptor from the set, since a copy in a forked child would keep it there.
void ProcessWatch::close_watched(Watched& process) noexcept {
  const bool ours = process.fd.is_ours() && (process.fd.id() != epoll_.id() || is_in_set(process.fd.number()));
  if (!ours) return process.fd.abandon();
  epoll_ctl(epoll_.number(), EPOLL_CTL_DEL, process.fd.number(), nullptr);
}

void ProcessWatch::reset() noexcept {
  if (!valid()) return;
  const int saved = errno;
  const bool ours = is_ours();
  for (Watched& process : processes_) {
    if (process.fd.id() != epoll_.id()) continue;  // has an inode of its own
    if (!ours || !is_in_set(process.fd.number())) process.fd.abandon();
  }
  processes_.clear();
  // Without its epoll, the number of the eventfd cannot be checked either.
  if (relay_ != nullptr && (!ours || !is_relay_ours())) relay_->abandon();
  relay_.reset();
  if (!ours) epoll_.abandon();
  epoll_.reset();
  errno = saved;
}

Status ProcessWatch::watch(std::span<const int> pids) {
  processes_.reserve(pids.size() + processes_.size());
  std::erase_if(processes_, [&](Watched& watched) {
    const bool gone = std::find(pids.begin(), pids.end(), watched.pid) == pids.end();
    if (gone) close_watched(watched);
    return gone;
  });
  Status watched = success();
  for (const int pid : pids) {
    const auto is_it = [pid](const Watched& process) { return process.pid == pid; };
    if (std::any_of(processes_.begin(), processes_.end(), is_it)) continue;
    CheckedFd process(open_process(pid));
    if (!process.valid()) {
      if (errno != ESRCH && errno != EINVAL) watched = open_process_error(pid);
      continue;
    }
    if (set_readable(epoll_.number(), EPOLL_CTL_ADD, process.number())) {
      processes_.push_back({pid, std::move(process)});
    } else {
      watched = os_error("epoll_ctl of process " + std::to_string(pid), errno);
    }
  }
  return watched;
}

}  // namespace shmtree::platform
