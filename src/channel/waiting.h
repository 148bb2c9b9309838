// The wait that every blocking call of a channel is made of, for the files that implement Channel.
#pragma once

#include "channel/channel.h"

namespace shmtree::channel {

// How long ago somebody may have looked who is alive: before a refusal, and while waiting.
constexpr std::int64_t kLookedJustNowNs = 5'000'000;
constexpr std::int64_t kLookedLatelyNs = 250'000'000;

// Sleeps at `event` until ready(), for as long as somebody takes part in `peers`.
//   kTimeout: the deadline has passed; kInterrupted; or what end_error() says. ready() was false after each of them.
template <class Ready>
Status Channel::wait_at(Event& event, End peers, const char* waited_for, const Ready& ready, const WaitContext& wait) {
  memory::EventWait waiting(event, wait);
  for (bool looked = false;; looked = true) {
    if (looked) waiting.arm();
    if (ready()) return success();
    if (arena_->participants().check(looked ? kLookedLatelyNs : kLookedJustNowNs)) {
      Status repaired = arena_->reconcile(wait);
      if (!repaired) return repaired;
      if (ready()) return success();
    }
    if (is_over(peers)) {
      if (ready()) return success();  // by the doing of the last of them, before it left
      return end_error(peers);
    }
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
