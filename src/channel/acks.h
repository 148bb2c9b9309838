// Acknowledgements. A message counts as acked once it was received and no record holds it as unacked. A rejected
// message counts as acked, since no process would ever ack it and its sender would wait forever. Each process keeps the
// tickets of its own messages in private memory, so recovery has nothing to repair.
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

  // Records that this process has put `count` messages, and that `first` is the ticket of the first one.
  void note_sent(std::uint64_t first, std::uint64_t count) noexcept;
  // Returns the number of this process's messages that were not received yet, or are unacked. Takes no lock on the
  // channel: the number is exact if nothing is received meanwhile, and otherwise at most slightly off.
  std::uint64_t pending();
  // Waits until the message `ticket` is acked, or without a ticket all messages of this process. kTimeout; kPeerDied or
  // kClosed if no receiver is left.
  Status wait(std::optional<std::uint64_t> ticket, const WaitContext& wait);

 private:
  bool is_acked(std::uint64_t ticket) noexcept;
  bool all_acked(Identity me) noexcept;
  std::uint64_t not_received(Identity me, std::uint64_t head) noexcept;

  const Control control_;
  const Records& records_;
  const Ends& ends_;
  platform::ForkSafeMutex mutex_;  // guards the members below
  struct Range {
    std::uint64_t first, end;
  };
  std::deque<Range> sent_;      // tickets of this process, oldest first; those below head are removed later
  std::uint64_t sent_end_ = 0;  // past the last ticket
  Identity sent_by_ = memory::kNoIdentity;
};

}  // namespace shmtree::channel
