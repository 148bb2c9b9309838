// Waits at a channel while some process is attached to its other end.
//
// Thread safety: any thread, without locks.
#pragma once

#include <string>

#include "channel/deadlock.h"
#include "channel/ends.h"
#include "memory/event.h"
#include "platform/wait_policy.h"

namespace shmtree::channel {

// Sleeps at `event`, as `reason` says, until ready(), while some process is attached to `peers`.
//   kTimeout: the deadline has passed; kInterrupted; or what Ends::end_error() says; kClosed also when it is proved
//   that no process will ever use that end. ready() was false after each of them.
template <class Ready>
Status wait_for_peers(const Control& control, const Ends& ends, memory::Event& event, const memory::SleepReason& reason,
                      End peers, const char* waited_for, const Ready& ready, const WaitContext& wait) {
  using platform::wait_policy::alive_within_ns;
  memory::EventWait waiting(event, reason, wait);
  Deadlock deadlock(control, ends, peers, wait);
  for (bool looked = false;; looked = true) {
    if (looked) waiting.arm();
    if (ready()) return success();
    if (control.arena.participants().check(alive_within_ns(looked))) {
      Status repaired = control.arena.reconcile(wait);
      if (!repaired) return repaired;
      if (ready()) return success();
    }
    if (Status deaths = ends.report_deaths(peers); !deaths) return deaths;
    if (ends.is_over(peers)) {
      if (ready()) return success();  // by the doing of the last of them, before it left
      return ends.end_error(peers);
    }
    if (looked && deadlock.is_proved()) return deadlock.error();
    if (!looked && !wait.deadline.is_immediate()) continue;
    switch (waiting.sleep()) {
      case memory::EventWait::Wake::kLookAgain: break;
      case memory::EventWait::Wake::kInterrupted:
        return Error{Code::kInterrupted, std::string("interrupted while waiting for ") + waited_for};
      case memory::EventWait::Wake::kTimedOut:
        if (ready()) return success();
        return Error{Code::kTimeout, std::string(waited_for) + " did not come in time"};
    }
  }
}

}  // namespace shmtree::channel
