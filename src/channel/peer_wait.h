// Waits at a channel while some process is attached to its other end.
//
// Thread safety: any thread, without locks.
#pragma once

#include <string>

#include "channel/deadlock.h"
#include "channel/ends.h"
#include "memory/arena.h"
#include "memory/event.h"
#include "memory/held_locks.h"
#include "memory/transfers.h"
#include "platform/dcheck.h"
#include "platform/wait_policy.h"

namespace shmtree::channel {

struct PeerWait {
  memory::Event& event;        // signalled by changes that may make ready() true
  memory::SleepReason reason;  // for observers
  End peers;
  const char* waited_for;  // for errors: "a message"
};

// Blocks until ready() returns true, as long as some process is attached to the other end. ready() was false before
// each error:
//   - kTimeout: the deadline has passed. kInterrupted: a hook ended the wait.
//   - The errors of Ends::end_error() and Ends::report_dead_peers(). kClosed also if it is proved that no process will
//     ever use that end.
template <class Ready>
Status wait_for_peers(const Control& control, const Ends& ends, const PeerWait& what, const Ready& check,
                      const WaitContext& wait) {
  const memory::TakingCondition ready(check);
  SHMTREE_DCHECK(!memory::HeldLocks::contains(control.shared.senders_lock) &&
                 !memory::HeldLocks::contains(control.shared.receivers_lock));
  const End peers = what.peers;
  Deadlock deadlock(control, ends, peers, wait);
  const auto before_sleep = [&](bool first) -> Result<bool> {
    memory::end_lost_transfers();
    auto recovered = memory::recover_from_deaths(control.arena, platform::wait_policy::alive_within_ns(!first), wait);
    if (!recovered || (*recovered && ready())) return recovered;
    if (Status deaths = ends.report_deaths(peers); !deaths) return std::move(deaths).error();
    if (Status dead = ends.report_dead_peers(peers); !dead) {
      if (ready()) return true;  // made ready by the last peer, before it died
      return std::move(dead).error();
    }
    if (ends.is_over(peers)) {
      if (ready()) return true;  // made ready by the last peer, before it left
      return ends.end_error(peers);
    }
    if (!wait.deadline.is_immediate() && deadlock.is_proved()) return deadlock.error();
    return false;
  };
  memory::EventWait waiting(what.event, what.reason, wait);
  auto came = memory::wait_until(waiting, wait, what.waited_for, ready, before_sleep, ready);
  if (!came) return std::move(came).error();
  if (*came) return success();
  return Error{Code::kTimeout, "timed out waiting for " + (what.waited_for + ends.if_unattended(peers))};
}

}  // namespace shmtree::channel
