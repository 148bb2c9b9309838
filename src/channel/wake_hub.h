// One descriptor by which a process is woken for any number of ends: its socket, to which whoever has something to tell
// at an end that is awaited here sends the end's name.
//
// Invariants:
//   - A process has one at a time, which is open as long as somebody has it. Its name, a random number, stands in the
//     process's slot of each arena in which it awaits an end, before the bit that says so does (Watchers::await).
//   - Who tells takes the bit: there is at most one datagram for each await(). A socket that is full loses some, which
//     then is known: as many as it has room for are taken in one go.
//   - A forked child does not take its parent's.
//
// Thread safety: any thread.
#pragma once

#include <memory>
#include <vector>

#include "channel/control.h"
#include "platform/wake_socket.h"

namespace shmtree::channel {

using EndName = platform::WakeText;

class WakeHub {
 public:
  // That of this process. May throw std::bad_alloc.
  static Result<std::shared_ptr<WakeHub>> of_this_process();
  static EndName name_of(const Control& control, End end) noexcept;
  // Tells the process with the hub of that name. It may have ended.
  static void tell(std::uint32_t hub, const EndName& end) noexcept;

  int fd() const noexcept { return fd_.number(); }
  // False once the program has closed the descriptor: of_this_process() then opens another hub.
  bool is_open() const noexcept { return fd_.is_ours(); }
  std::uint32_t name() const noexcept { return name_; }
  // Those that were told of since the last time; `lost` says that there may have been more.
  std::vector<EndName> take(bool& lost) noexcept;

 private:
  bool is_of_this_process() const noexcept { return owner_ == platform::process_id() && is_open(); }
  WakeHub(platform::CheckedFd fd, std::uint32_t name);
  static Result<std::shared_ptr<WakeHub>> open();

  platform::CheckedFd fd_;
  std::uint32_t name_;
  int owner_;
  std::uint64_t room_;  // for datagrams; 0: not known
  std::atomic<bool> taking_{false};
};

}  // namespace shmtree::channel
