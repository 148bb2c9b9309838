// One wake pipe by which a process is woken for any number of ends. A process that changes an end writes the end's name
// to the hubs that await the end.
//
// Invariants:
//   - A process has one hub at a time, open as long as an object of the process refers to it. Its address is stored in
//     the process's slot of each arena in which it awaits an end, before the bit in `awaiting` (Watchers::await).
//   - The sender clears the bit: there is at most one text for each await(). A full pipe loses texts. take() reports
//     `lost` whenever it finds at least half of the capacity.
//   - A forked child does not use its parent's hub.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "platform/machine.h"
#include "platform/wake_pipe.h"

namespace shmtree::channel {

using EndName = platform::WakeText;

class WakeHub {
 public:
  // Returns the hub of this process, and opens it if there is none. May throw std::bad_alloc.
  static Result<std::shared_ptr<WakeHub>> of_this_process();

  int fd() const noexcept { return pipe_.number(); }
  // False once the program has closed the descriptor: of_this_process() then opens another hub.
  bool is_open() const noexcept { return pipe_.is_ours(); }
  platform::WakeAddress address() const noexcept { return pipe_.address(); }
  // Returns the ends for which a wake-up came since the last call. Sets `lost` if there may have been more.
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
