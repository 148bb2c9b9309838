// The sender's side of wake pipes (wake_pipe.h).
//
// The address of a pipe comes from shared memory. Its pid and descriptor may be stale or invalid, or belong to another
// process by now. So the sender opens only an anonymous pipe with that inode whose descriptor is open for reading and
// writing. It checks this before the open, which could otherwise block or have an effect.
//
// Senders keep the descriptors of pipes of other processes: a write costs 1.5 us, an open ten times as much. All
// senders of a process together keep at most 256, and at most an eighth of RLIMIT_NOFILE. Forked children may share
// them, since senders only write to them.
//
// Thread safety: any thread.
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

  // Sends a byte, or a text, to the pipe of that process, without blocking. A pipe that is full is readable already: no
  // error. Returns false if the pipe was not reached: it is closed, its process has ended or is in another PID
  // namespace, or this process may not open it or has no free descriptor. Takes the request only once the pipe is open,
  // so that it is left to a sender that reaches the listener. Preserves errno.
  bool send(int pid, WakeAddress address, std::string_view text = kPlainWake, WakeRequest request = {}) const noexcept;
  template <class Take>
  bool send_if(Take take, int pid, WakeAddress address, std::string_view text = kPlainWake) const noexcept {
    return send(pid, address, text, {[](void* context) noexcept { return (*static_cast<Take*>(context))(); }, &take});
  }
};

}  // namespace shmtree::platform
