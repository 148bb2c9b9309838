// One descriptor by which a process is woken for any number of ends: its wake pipe, to which a process that changes an
// end that is awaited here sends the end's name.
//
// Invariants:
//   - A process has one at a time, which is open as long as an object of the process has it. Its address is in the
//     process's slot of each arena in which it awaits an end, before the bit that says so is set (Watchers::await).
//   - The sender takes the bit: there is at most one text for each await(). A pipe that is full loses some. Then at
//     least half of its capacity is taken in one go, which is reported as `lost`.
//   - A forked child does not take its parent's.
//
// Thread safety: any thread.
#pragma once

#include <memory>
#include <vector>

#include "channel/control.h"
#include "platform/machine.h"
#include "platform/wake_pipe.h"

namespace shmtree::channel {

using EndName = platform::WakeText;

class WakeHub {
 public:
  // That of this process. May throw std::bad_alloc.
  static Result<std::shared_ptr<WakeHub>> of_this_process();
  static EndName name_of(const Control& control, End end) noexcept;

  int fd() const noexcept { return pipe_.number(); }
  // False once the program has closed the descriptor: of_this_process() then opens another hub.
  bool is_open() const noexcept { return pipe_.is_ours(); }
  platform::WakeAddress address() const noexcept { return pipe_.address(); }
  // Those that were told of since the last time; `lost` says that there may have been more.
  std::vector<EndName> take(bool& lost) noexcept;

 private:
  bool is_of_this_process() const noexcept { return owner_ == platform::process_id() && is_open(); }
  explicit WakeHub(platform::WakePipe pipe);

  platform::WakePipe pipe_;
  int owner_;
  std::uint64_t capacity_;  // in texts; 0: unknown
  std::atomic<bool> taking_{false};
};

}  // namespace shmtree::channel
