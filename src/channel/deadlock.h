// Proves that a call is deadlocked, so that it returns the end of the stream instead of waiting.
//
// A stream goes on while any process has its other end, even if that process will never use it: a launcher that forgot
// to close it, or a process that inherited it over a fork. Where all of those wait for ever themselves, none of them
// can use it, or close it, any more. That is proved by a walk over the processes: it begins with this one; each must
// have all its threads in calls of the library that have no deadline, that wait for a message or for room in a channel
// of this arena, and that have nothing to wake up for; and whoever takes part in the other end of one of those channels
// must be such a process, too. Two walks, kDeadlockNs apart, must find the same calls.
//
// Ending one of these calls may be what the others wait for. So only one call ends at a time, chosen among calls whose
// peer end was never used. Calls whose peer end was given to no process come first; among equals, the oldest channel.
//
// No proof: deadlines, poll loops and coroutines, threads that run other code, an end on its way, messages that were
// taken and not settled, channels that others may open by a name, and what is in several arenas. Foreign threads that
// enter Python, and signal handlers, are not seen.
//
// Thread safety: none; one for each waiting call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "channel/ends.h"

namespace shmtree::channel {

class Deadlock {
 public:
  // For a call that waits for those at `peers`.
  Deadlock(const Control& control, const Ends& ends, End peers, const WaitContext& wait) noexcept
      : control_(control), ends_(ends), peers_(peers), wait_(wait) {}

  // Call after every sleep. May throw std::bad_alloc.
  bool is_proved();
  // What the call says then.
  Error error() const;

  // A call that waits for ever.
  struct Call {
    Identity who;
    std::uint32_t place;  // in Participant::waits
    std::uint64_t about;
    std::int64_t since_ns;
    bool operator==(const Call&) const = default;
  };
  // Which of two calls is told first; those of an end that somebody uses never are.
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
  std::int64_t seen_ns_ = 0;  // when `seen_` was
  std::vector<Call> seen_{};  // by the last walk that found no way out
};

}  // namespace shmtree::channel
