#include "platform/wake_socket.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <new>
#include <utility>
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

UniqueFd new_socket() noexcept {
  return UniqueFd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// The sending socket of this process, or -1 if no descriptor is free. Unbound and non-blocking, so forked children may
// share it. Opened by the first wake-up, and again once the program has closed it; then the object of the closed one
// stays, since other threads may be using it.
int sending_socket() noexcept {
  static constinit std::atomic<const CheckedFd*> current{nullptr};
  const CheckedFd* known = current.load(std::memory_order_acquire);
  if (known != nullptr && known->is_ours()) return known->number();
  CheckedFd opened(new_socket());
  if (!opened.valid()) return -1;
  const auto* made = new (std::nothrow) CheckedFd(std::move(opened));
  if (made == nullptr) return -1;
  if (current.compare_exchange_strong(known, made)) return made->number();
  delete made;  // another thread was faster
  return known->number();
}

// How the kernel, or a seccomp filter, refuses a system call.
bool is_refusal(int failure) noexcept {
  return failure == EPERM || failure == EACCES || failure == ENOSYS;
}

ssize_t send_to(int fd, const Address& to, std::string_view text) noexcept {
  constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
  const ssize_t sent = sendto(fd, text.data(), text.size(), kFlags, to.get(), to.size);
  if (sent >= 0 || !is_refusal(errno)) return sent;
  // A filter may refuse sendto() alone.
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_name = const_cast<sockaddr*>(to.get());
  message.msg_namelen = to.size;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return sendmsg(fd, &message, kFlags);
}

}  // namespace

Result<CheckedFd> open_wake_socket(std::string_view address) {
  CheckedFd fd(new_socket(), FdRange::kSelectable);
  if (!fd.valid()) return os_error("socket(AF_UNIX)", errno);
  const Address bound(address);
  if (bind(fd.number(), bound.get(), bound.size) != 0) return os_error("bind of a wake-up socket", errno);
  return fd;
}

Status check_wakes(const CheckedFd& fd, std::string_view address) {
  if (send_to(fd.number(), Address(address), std::string_view("\0", 1)) < 0 && is_refusal(errno)) {
    Error error = os_error("sendto and sendmsg on a unix socket", errno);
    error.message +=
        ": without one of them a descriptor would not become readable. Allow one of the two system calls, for example "
        "in the seccomp profile of the container, or wait without a descriptor of your own: in get(), in a coroutine, "
        "or with shmtree.wait() (in C++ shmtree::wait())";
    return error;
  }
  drain_wakes(fd);
  return success();
}

bool send_wake(std::string_view address, std::string_view text) noexcept {
  const int saved = errno;
  const ssize_t sent = send_to(sending_socket(), Address(address), text);
  const bool absent = sent < 0 && errno == ECONNREFUSED;
  errno = saved;
  return !absent;
}

void drain_wakes(const CheckedFd& fd) noexcept {
  if (!fd.is_ours()) return;
  const int saved = errno;
  char bytes[16];
  while (recv(fd.number(), bytes, sizeof bytes, MSG_DONTWAIT) >= 0 || errno == EINTR) {
  }
  errno = saved;
}

bool receive_wakes(const CheckedFd& fd, std::span<WakeText> out, std::size_t& received, std::size_t& texts) noexcept {
  received = texts = 0;
  if (!fd.is_ours()) return false;
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
  const int count = recvmmsg(fd.number(), messages, static_cast<unsigned>(most), MSG_DONTWAIT | MSG_TRUNC, nullptr);
  const bool was_interrupted = count < 0 && errno == EINTR;
  errno = saved;
  received = count > 0 ? static_cast<std::size_t>(count) : 0;
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
