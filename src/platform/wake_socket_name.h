// The name of a wake-up socket (wake_pipe.h). Includes system headers, so only .cpp files include it.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace shmtree::platform {

// "shmtree/wakes/" and the number in 8 hexadecimal digits, in the abstract namespace.
class WakeSocketName {
 public:
  explicit WakeSocketName(std::uint32_t id) noexcept {
    name_.sun_family = AF_UNIX;
    // The zero byte before the name puts it into the abstract namespace.
    length_ = std::snprintf(name_.sun_path + 1, sizeof name_.sun_path - 1, "shmtree/wakes/%08x", id);
  }
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&name_); }
  socklen_t size() const noexcept {
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(length_));
  }

 private:
  sockaddr_un name_{};
  int length_ = 0;
};

}  // namespace shmtree::platform
