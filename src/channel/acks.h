// Acknowledgements. A message counts as acked once it was received and no record holds it as unacked. A rejected
// message counts as acked, since no process would ever ack it and its sender would wait forever. A slot of the ring
// names its sender, so a process remembers only its last ticket, in private memory (RingTail), and recovery has nothing
// to repair.
//
// Thread safety: any thread.
#pragma once

#include <optional>

#include "channel/ends.h"
#include "channel/records.h"

namespace shmtree::channel {

class Acks {
 public:
  Acks(const Control& control, const RingTail& tail, const Records& records, const Ends& ends) noexcept
      : control_(control), tail_(tail), records_(records), ends_(ends) {}

  // Returns the number of this process's messages that were not received yet, or are unacked. Takes no lock on the
  // channel: the number is exact if nothing is received meanwhile, and otherwise at most slightly off. Reads each slot
  // of the ring that may be of this process.
  std::uint64_t pending();
  // Waits until the message `ticket` is acked, or without a ticket all messages of this process. kTimeout; kPeerDied or
  // kClosed if no receiver is left.
  Status wait(std::optional<std::uint64_t> ticket, const WaitContext& wait);

 private:
  bool is_acked(std::uint64_t ticket) noexcept;
  bool all_acked(Identity me) noexcept;
  std::uint64_t not_received(Identity me, std::uint64_t head) const noexcept;

  const Control control_;
  const RingTail& tail_;
  const Records& records_;
  const Ends& ends_;
};

}  // namespace shmtree::channel
