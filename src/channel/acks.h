// Acknowledgements: a message is acknowledged once it was received and is in no delivery record, or in one of those
// that were given up: nobody would ever acknowledge it, and its sender is not to wait for ever. What a process has put
// it notes for itself, so nothing shared has to be kept, or repaired, for it.
//
// Thread safety: any thread.
#pragma once

#include <deque>
#include <optional>

#include "channel/ends.h"
#include "platform/fork.h"

namespace shmtree::channel {

class Acks {
 public:
  Acks(const Control& control, const Records& records, const Ends& ends)
      : control_(control), records_(records), ends_(ends) {}

  // This process has put `count` messages, the first of them with that ticket.
  void note_sent(std::uint64_t first, std::uint64_t count) noexcept;
  // Tickets of this process that were not received yet, or taken and not acknowledged. Without a lock: exact when
  // nothing is received meanwhile, else as it was at some instant or nearly so.
  std::uint64_t pending();
  // kTimeout; kPeerDied or kClosed when nobody is left to receive. `ticket`: that message, else all of this process's.
  Status wait(std::optional<std::uint64_t> ticket, const WaitContext& wait);

 private:
  bool is_acked(std::uint64_t ticket) noexcept;
  bool all_acked(Identity me) noexcept;
  std::uint64_t not_received(Identity me, std::uint64_t head) noexcept;

  const Control control_;
  const Records& records_;
  const Ends& ends_;
  platform::ForkSafeMutex mutex_;  // all below
  struct Range {
    std::uint64_t first, end;
  };
  std::deque<Range> sent_;      // tickets of this process, oldest first; those below head are dropped when looked at
  std::uint64_t sent_end_ = 0;  // past the last of them
  Identity sent_by_ = memory::kNobody;
};

}  // namespace shmtree::channel
