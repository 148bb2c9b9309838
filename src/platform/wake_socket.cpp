#include "platform/wake_socket.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <vector>

#include "platform/machine.h"

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

bool send_wake(std::string_view address, std::string_view text) noexcept {
  const int saved = errno;
  const Address to(address);
  const ssize_t sent =
      sendto(sending_socket(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL, to.get(), to.size);
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

bool receive_wakes(int fd, std::span<WakeText> out, std::size_t& received, std::size_t& texts) noexcept {
  constexpr std::size_t kMost = 32;
  const std::size_t most = std::min(out.size(), kMost);
  iovec places[kMost];
  mmsghdr messages[kMost]{};
  for (std::size_t i = 0; i < most; ++i) {
    places[i] = {out[i].data(), out[i].size()};
    messages[i].msg_hdr.msg_iov = &places[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const int saved = errno;
  const int count = recvmmsg(fd, messages, static_cast<unsigned>(most), MSG_DONTWAIT | MSG_TRUNC, nullptr);
  const bool was_interrupted = count < 0 && errno == EINTR;
  errno = saved;
  received = count > 0 ? static_cast<std::size_t>(count) : 0;
  texts = 0;
  for (std::size_t i = 0; i < received; ++i) {
    if (messages[i].msg_len == sizeof(WakeText)) out[texts++] = out[i];
  }
  return received == most || was_interrupted;
}

std::uint64_t most_waiting_wakes() noexcept {
  try {
    const auto beyond_one = read_number("/proc/sys/net/unix/max_dgram_qlen");
    return beyond_one ? *beyond_one + 1 : 0;
  } catch (const std::bad_alloc&) {
    return 0;
  }
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
