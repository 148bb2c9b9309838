// Waits at a channel while some process is attached to its other end, and proves deadlocks.
//
// Thread safety: any thread, without locks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "channel/ends.h"
#include "memory/arena.h"
#include "memory/event.h"
#include "memory/held_locks.h"
#include "memory/transfers.h"
#include "platform/dcheck.h"
#include "platform/wait_policy.h"

namespace shmtree::channel {

// Proves that a call is deadlocked, so that it returns the end of the stream instead of waiting.
//
// A stream does not end while any process is attached to its other end, even if that process will never use it.
// Examples are a launcher that forgot to close it, and a process that inherited it over a fork. If all of those
// processes are blocked indefinitely, none of them can use or close the end any more.
//
// A walk over the processes, which begins with this one, proves that. All threads of each process must be in calls of
// the library that have no deadline. The calls must wait for a message or for space in a channel of this arena, and
// have nothing to wake up for. Every process attached to the other end of one of those channels must be such a process,
// too. Two walks, kDeadlockNs apart, must find the same calls.
//
// If one of these calls returns, its process may do what the others wait for. So only one call ends at a time, chosen
// among calls with a peer end that was never used. Calls with a peer end that was given to no process come first; among
// equals, the call on the oldest channel.
//
// A proof fails if a process has deadlines, poll loops, coroutines, or threads that run other code. It also fails if an
// end is in transit, messages are unacked, a channel can be opened by name, or the cycle spans several arenas. Foreign
// threads that enter Python, and signal handlers, are not detected.
//
// Thread safety: none; one object for each waiting call.
class Deadlock {
 public:
  // For a call that waits for the processes at `peers`.
  Deadlock(const Control& control, const Ends& ends, End peers, const WaitContext& wait) noexcept
      : control_(control), ends_(ends), peers_(peers), wait_(wait) {}

  // Call after every sleep. May throw std::bad_alloc.
  bool is_proved();
  // Returns the error of a call that is deadlocked.
  Error error() const;

  // A call that blocks indefinitely.
  struct Call {
    Identity identity;
    std::uint32_t index;  // index in Participant::waits
    std::uint64_t about;
    std::int64_t since_ns;
    bool operator==(const Call&) const = default;
  };
  // Order in which deadlocked calls may end: the call with the lowest rank ends first. A call has no rank if its peer
  // end is in use.
  struct Rank {
    bool given;
    std::int64_t made_ns;
    auto operator<=>(const Rank&) const = default;
  };

 private:
  bool may_be() const noexcept;

  const Control& control_;
  const Ends& ends_;
  const End peers_;
  const WaitContext& wait_;
  std::uint32_t asked_ = 0;
  std::int64_t seen_ns_ = 0;  // time of the walk that found `seen_`
  std::vector<Call> seen_{};  // calls of the last walk that found no way out
};

// Checks, before each sleep of a call that waits for the processes at `peers`, for what wakes no thread: deaths, the
// end of the stream, and a deadlock.
class PeerCheck {
 public:
  PeerCheck(const Control& control, const Ends& ends, End peers, const WaitContext& wait) noexcept
      : control_(control), ends_(ends), peers_(peers), wait_(wait), deadlock_(control, ends, peers, wait) {}

  // The before_sleep() of memory::wait_until(). Returns the errors of Ends::end_error() and Ends::report_dead_peers().
  // kClosed also if it is proved that no process will ever use that end. ready() was false before each error.
  template <class Ready>
  Result<bool> before_sleep(bool first, const Ready& ready) {
    memory::end_lost_transfers();
    auto recovered = memory::recover_from_deaths(control_.arena, platform::wait_policy::alive_within_ns(!first), wait_);
    if (!recovered || (*recovered && ready())) return recovered;
    if (Status deaths = ends_.report_deaths(peers_); !deaths) return std::move(deaths).error();
    if (Status dead = ends_.report_dead_peers(peers_); !dead) {
      if (ready()) return true;  // made ready by the last peer, before it died
      return std::move(dead).error();
    }
    if (ends_.is_over(peers_)) {
      if (ready()) return true;  // made ready by the last peer, before it left
      return ends_.end_error(peers_);
    }
    if (!wait_.deadline.is_immediate() && deadlock_.is_proved()) return deadlock_.error();
    return false;
  }

 private:
  const Control& control_;
  const Ends& ends_;
  const End peers_;
  const WaitContext& wait_;
  Deadlock deadlock_;
};

struct PeerWait {
  memory::Event& event;        // signalled by changes that may make ready() true
  memory::SleepReason reason;  // for observers
  End peers;
  const char* waited_for;  // for errors: "a message"
};

// Blocks until ready() returns true, as long as some process is attached to the other end. Errors: those of PeerCheck;
// kTimeout: the deadline has passed; kInterrupted: a hook ended the wait.
template <class Ready>
Status wait_for_peers(const Control& control, const Ends& ends, const PeerWait& what, const Ready& check,
                      const WaitContext& wait) {
  const memory::TakingCondition ready(check);
  SHMTREE_DCHECK(!memory::HeldLocks::contains(control.shared.senders_lock) &&
                 !memory::HeldLocks::contains(control.shared.receivers_lock));
  PeerCheck peers(control, ends, what.peers, wait);
  memory::EventWait waiting(what.event, what.reason, wait);
  auto came = memory::wait_until(
      waiting, wait, what.waited_for, ready, [&](bool first) { return peers.before_sleep(first, ready); }, ready);
  if (!came) return std::move(came).error();
  if (*came) return success();
  return Error{Code::kTimeout, "timed out waiting for " + (what.waited_for + ends.if_unattended(what.peers))};
}

}  // namespace shmtree::channel
