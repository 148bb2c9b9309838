#include "platform/wake_socket.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace shmtree::platform {
namespace {

struct Address {
  sockaddr_un name{};
  socklen_t size = 0;

  explicit Address(std::string_view text) noexcept {
    name.sun_family = AF_UNIX;
    const std::size_t length = std::min(text.size(), sizeof name.sun_path - 1);
    memcpy(name.sun_path + 1, text.data(), length);  // a leading zero byte: the abstract namespace
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&name); }
};

// One sending socket for the whole process. Unbound and non-blocking, so forked children may share it.
int sending_socket() noexcept {
  static const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  return fd;
}

}  // namespace

Result<UniqueFd> open_wake_socket(std::string_view address) {
  UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return os_error("socket(AF_UNIX)", errno);
  const Address bound(address);
  if (bind(fd.get(), bound.get(), bound.size) != 0) return os_error("bind of a wake-up socket", errno);
  return fd;
}

bool send_wake(std::string_view address) noexcept {
  const int saved = errno;
  const Address to(address);
  const ssize_t sent = sendto(sending_socket(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, to.get(), to.size);
  const bool absent = sent < 0 && errno == ECONNREFUSED;
  errno = saved;
  return !absent;
}

void drain_wakes(int fd) noexcept {
  const int saved = errno;
  char bytes[16];
  while (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) >= 0 || errno == EINTR) {
  }
  errno = saved;
}

Status wait_readable(std::span<const int> descriptors, std::int64_t most_ns) {
  std::vector<pollfd> watched;
  watched.reserve(descriptors.size());
  for (const int fd : descriptors) watched.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  const int saved = errno;
  const timespec most{.tv_sec = most_ns / 1'000'000'000, .tv_nsec = most_ns % 1'000'000'000};
  const int failed = ppoll(watched.data(), watched.size(), &most, nullptr) < 0 ? errno : 0;
  errno = saved;
  if (failed == 0 || failed == EINTR) return success();
  return os_error("ppoll of " + std::to_string(watched.size()) + " descriptors", failed);
}

}  // namespace shmtree::platform
