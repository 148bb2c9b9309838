// Acknowledgements. A message counts as acked once it was received and no record holds it as unacked. A rejected
// message counts as acked, since no process would ever ack it and its sender would wait forever. A slot of the ring
// names its sender, so a process remembers only its last ticket, in private memory, and recovery has nothing to repair.
//
// Thread safety: any thread.
#pragma once

#include <optional>

#include "channel/ends.h"
#include "memory/held_locks.h"
#include "platform/dcheck.h"

namespace shmtree::channel {

class Acks {
 public:
  Acks(const Control& control, const Records& records, const Ends& ends)
      : control_(control), records_(records), ends_(ends) {}

  // Records that the ticket of this process's last message is `end` - 1. Under the senders' lock.
  void note_sent(Identity me, std::uint64_t end) noexcept {
    SHMTREE_DCHECK(memory::HeldLocks::contains(control_.shared.senders_lock));
    sent_by_.store(me, std::memory_order_relaxed);
    sent_end_.store(end, std::memory_order_release);
  }
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
  // Returns the ticket after that of the last message of `me`; 0 if there is none.
  std::uint64_t sent_end(Identity me) const noexcept {
    const std::uint64_t end = sent_end_.load(std::memory_order_acquire);
    return sent_by_.load(std::memory_order_relaxed) == me ? end : 0;
  }

  const Control control_;
  const Records& records_;
  const Ends& ends_;
  std::atomic<std::uint64_t> sent_end_{0};
  std::atomic<Identity> sent_by_{memory::kNoIdentity};  // a forked child does not own its parent's messages
};

}  // namespace shmtree::channel
