#include "platform/wake_pipe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <utility>
#include <vector>

#include "platform/machine.h"
#include "platform/retry.h"
#include "platform/wake_socket_name.h"

namespace shmtree::platform {
namespace {

// Device number of all anonymous pipes; 0 until this process has opened a wake pipe.
constinit std::atomic<std::uint64_t> g_pipe_device{0};

// The program may have made the descriptor blocking.
void make_nonblocking(int fd) noexcept {
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0 && (flags & O_NONBLOCK) == 0) fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

}  // namespace

Result<WakePipe> WakePipe::open(WakeKind kind) {
  if (prctl(PR_GET_DUMPABLE) != 1) return open_socket();
  auto pipe = open_pipe(kind);
  if (pipe) return pipe;
  auto socket = open_socket();
  return socket ? std::move(socket) : std::move(pipe);
}

Result<WakePipe> WakePipe::open_pipe(WakeKind kind) {
  int ends[2];
  if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0) return os_error("pipe2", errno);
  const UniqueFd reading(ends[0]), writing(ends[1]);
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", reading.get());
  CheckedFd both(UniqueFd(::open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC)), FdRange::kSelectable);
  if (!both.valid()) return proc_error(std::string("open ") + path, errno);
  g_pipe_device.store(both.id().device, std::memory_order_relaxed);
  if (kind == WakeKind::kBytes) fcntl(both.number(), F_SETPIPE_SZ, 1);  // rounded up to a page
  const auto address =
      make_wake_address(static_cast<std::uint32_t>(both.number()), static_cast<std::uint32_t>(both.id().inode));
  return WakePipe(std::move(both), address);
}

Result<WakePipe> WakePipe::open_socket() {
  CheckedFd fd(UniqueFd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), FdRange::kSelectable);
  if (!fd.valid()) return os_error("socket(AF_UNIX)", errno);
  for (int tries = 1;; ++tries) {
    std::uint32_t id = 0;
    random_bytes(reinterpret_cast<unsigned char*>(&id), sizeof id);
    const WakeSocketName name(id);
    if (bind(fd.number(), name.get(), name.size()) == 0) {
      return WakePipe(std::move(fd), make_wake_address(kSocketNumber, id));
    }
    constexpr int kMaxTries = 4;  // random numbers do not collide that often
    if (errno != EADDRINUSE || tries == kMaxTries) return os_error("bind of a wake-up socket", errno);
  }
}

bool WakePipe::is_own(WakeAddress address) noexcept {
  const int number = static_cast<int>(number_of(address));
  struct stat status {};
  if (fstat(number, &status) != 0 || status.st_dev != g_pipe_device.load(std::memory_order_relaxed)) return false;
  if (static_cast<std::uint32_t>(status.st_ino) != id_of(address)) return false;
  constexpr int kMask = O_ACCMODE | O_NONBLOCK, kWanted = O_RDWR | O_NONBLOCK;
  return (fcntl(number, F_GETFL) & kMask) == kWanted;
}

void WakePipe::wake() const noexcept {
  if (!fd_.is_ours()) return;
  const int saved = errno;
  make_nonblocking(fd_.number());
  if (number_of(address_) != kSocketNumber) {
    retry([&] { return write(fd_.number(), "", 1); });
  } else {
    const WakeSocketName name(id_of(address_));
    retry([&] { return sendto(fd_.number(), "", 1, MSG_DONTWAIT, name.get(), name.size()); });
  }
  errno = saved;
}

void WakePipe::drain() const noexcept {
  if (!fd_.is_ours()) return;
  const int saved = errno;
  make_nonblocking(fd_.number());
  char bytes[4096];
  const bool is_socket = number_of(address_) == kSocketNumber;
  for (;;) {
    const ssize_t taken = retry([&] { return read(fd_.number(), bytes, sizeof bytes); });
    if (taken < 0 || (!is_socket && taken != sizeof bytes)) break;
  }
  errno = saved;
}

bool WakePipe::receive(std::span<WakeText> out, std::size_t& received, bool& damaged) const noexcept {
  received = 0;
  if (!fd_.is_ours()) return false;
  const int saved = errno;
  make_nonblocking(fd_.number());
  const ssize_t bytes = retry([&] { return read(fd_.number(), out.data(), out.size_bytes()); });
  errno = saved;
  if (bytes < 0) return false;
  if (bytes == 0 || static_cast<std::size_t>(bytes) % sizeof(WakeText) != 0) {
    damaged = true;
    drain();
    return false;
  }
  received = static_cast<std::size_t>(bytes) / sizeof(WakeText);
  return received == out.size() || number_of(address_) == kSocketNumber;
}

std::uint64_t WakePipe::max_waiting_texts() const noexcept {
  const int saved = errno;
  const int bytes = fd_.is_ours() ? fcntl(fd_.number(), F_GETPIPE_SZ) : 0;
  errno = saved;
  return bytes > 0 ? static_cast<std::uint64_t>(bytes) / sizeof(WakeText) : 0;
}

Status wait_readable(std::span<const int> descriptors, std::int64_t max_ns) {
  std::vector<pollfd> watched;
  watched.reserve(descriptors.size());
  for (const int fd : descriptors) watched.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  const int saved = errno;
  const timespec most{.tv_sec = max_ns / 1'000'000'000, .tv_nsec = max_ns % 1'000'000'000};
  const int failed = ppoll(watched.data(), watched.size(), &most, nullptr) < 0 ? errno : 0;
  errno = saved;
  if (failed == 0 || failed == EINTR) return success();
  return os_error("ppoll of " + std::to_string(watched.size()) + " descriptors", failed);
}

}  // namespace shmtree::platform
