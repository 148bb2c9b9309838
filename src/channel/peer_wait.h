// Waits at a channel while some process is attached to its other end.
//
// Thread safety: any thread, without locks.
#pragma once

#include <string>

#include "channel/deadlock.h"
#include "channel/ends.h"
#include "memory/deaths.h"
#include "memory/wait_until.h"
#include "platform/wait_policy.h"

namespace shmtree::channel {

struct PeerWait {
  memory::Event& event;        // signalled by what may make ready() true
  memory::SleepReason reason;  // for observers
  End peers;
  const char* waited_for;  // for errors: "a message"
};

// Sleeps until ready(), while some process is attached to the other end.
//   kTimeout: the deadline has passed; kInterrupted; or what Ends::end_error() says; kClosed also when it is proved
//   that no process will ever use that end. ready() was false after each of them.
template <class Ready>
Status wait_for_peers(const Control& control, const Ends& ends, const PeerWait& what, const Ready& ready,
                      const WaitContext& wait) {
  const End peers = what.peers;
  Deadlock deadlock(control, ends, peers, wait);
  const auto attend = [&](bool first) -> Result<bool> {
    auto recovered = memory::recover_from_deaths(control.arena, platform::wait_policy::alive_within_ns(!first), wait);
    if (!recovered || (*recovered && ready())) return recovered;
    if (Status deaths = ends.report_deaths(peers); !deaths) return std::move(deaths).error();
    if (ends.is_over(peers)) {
      if (ready()) return true;  // by the doing of the last of them, before it left
      return ends.end_error(peers);
    }
    if (!wait.deadline.is_immediate() && deadlock.is_proved()) return deadlock.error();
    return false;
  };
  memory::EventWait waiting(what.event, what.reason, wait);
  auto came = memory::wait_until(waiting, wait, what.waited_for, ready, attend);
  if (!came) return std::move(came).error();
  if (*came) return success();
  return Error{Code::kTimeout, std::string(what.waited_for) + " did not come in time"};
}

}  // namespace shmtree::channel
