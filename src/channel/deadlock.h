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
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "channel/ends.h"

namespace shmtree::channel {

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

}  // namespace shmtree::channel
