// The address of a pipe comes from shared memory. Its pid and descriptor may be stale or invalid, or belong to another
// process by now. So the sender opens only an anonymous pipe with that inode and a descriptor that is open for reading
// and writing. It checks this before the open, which could otherwise block or have an effect.
#pragma once

#include "platform/wake_pipe.h"

namespace shmtree::platform {

// A listener's request for one wake-up, which the first sender takes.
struct WakeRequest {
  bool (*take)(void* context) noexcept = nullptr;  // false if another sender has taken it; null: there is no request
  void* context = nullptr;
};
constexpr std::string_view kPlainWake("\0", 1);

class WakeSender {
 public:
  WakeSender() noexcept = default;
  WakeSender(const WakeSender&) = delete;
  WakeSender& operator=(const WakeSender&) = delete;
  ~WakeSender();  // closes the descriptors that it keeps

  // Sends a byte, or a text, to the pipe of that process, without blocking. A full pipe is readable already, so that is
  // no error. Takes the request only once the pipe is open, so that a request that this sender cannot serve is left to
  // another one. Preserves errno.
  //
  // Returns false if the pipe was not reached. Then it is closed, or its process has exited or is in another PID
  // namespace, or this process may not open it or has no free descriptor.
  bool send(int pid, WakeAddress address, std::string_view text = kPlainWake, WakeRequest request = {}) const noexcept;
  template <class Take>
  bool send_if(Take take, int pid, WakeAddress address, std::string_view text = kPlainWake) const noexcept {
    return send(pid, address, text, {[](void* context) noexcept { return (*static_cast<Take*>(context))(); }, &take});
  }
};

}  // namespace shmtree::platform
