// Getting messages: those that were returned, oldest first, then those of the ring.
//
// Invariants:
//   - A message is received by the store of `head`, or of its record's state, with its block held before.
//   - A call that was woken for messages and leaves them wakes the next who waits.
//
// Thread safety: any thread.
#pragma once

#include "channel/claim.h"
#include "channel/parts.h"
#include "channel/spinner.h"

namespace shmtree::channel {

class Receiving {
 public:
  explicit Receiving(Parts& parts) noexcept : parts_(parts) {}

  // Into `out`, which holds nothing: an inline frame is not moved once more. kEmpty: nothing in time; kClosed,
  // kPeerDied or kShutDown: the stream has ended.
  Status get(Incoming& out, const WaitContext& wait);
  // Until get() would return, or report the end, at once; kEmpty: not in time. Receives nothing.
  Status poll(const WaitContext& wait);
  // Looks for a message by look(me, wait), which says whether it received one, until it did; waits in between. Errors
  // as get().
  template <class Look>
  Status receive_by(const Look& look, const WaitContext& wait) {
    auto got = look_once(look, wait);
    if (got && !*got) return wait_and_receive(look, wait);
    return got ? success() : Status(std::move(got).error());
  }
  // Receives the oldest message for nobody, and counts it as dropped; false when there is none to be received now.
  Result<bool> drop_oldest(const WaitContext& wait);
  // The same in two steps, for who has the senders' lock, under which nothing is waited for and the arena's lock not
  // taken: try_drop_oldest() with it, false also when the receivers' lock is not free; finish() without.
  struct Drop {
    Incoming message;
    Receipt receipt;
    bool made = false;
  };
  bool try_drop_oldest(Drop& drop, Identity me) noexcept;
  void finish(Drop& drop) noexcept;
  // Under the receivers' lock: whether this process may receive what is there.
  enum class Access { kFree, kReserved, kShutDown };
  Access access() const noexcept;
  // Drops what a shutdown discarded. Whoever finds some does, since the one who shut down may have died.
  Status discard_queued(const WaitContext& wait);
  // For a call that found the queue emptied by its shutdown.
  Error discarded(const WaitContext& wait);

 private:
  template <class Look>
  Result<bool> look_once(const Look& look, const WaitContext& wait) {
    Status rejected = parts_.returns.reject_given_up(wait);
    if (!rejected) [[unlikely]]
      return in_time(std::move(rejected).error(), Code::kEmpty);
    auto me = parts_.control.arena.identity();  // each time: the wait may run code that forks, and go on in the child
    if (!me) return std::move(me).error();
    Status peers = parts_.ends.check_deaths(End::kSending);
    if (!peers) [[unlikely]]
      return std::move(peers).error();
    auto got = look(*me, wait);
    if (!got) {
      parts_.watchers.leave_messages_to_others();  // another process may have what this one lacks
    } else if (!*got) {
      parts_.membership.mark_used(End::kReceiving, *me);
    }
    return got;
  }
  template <class Look>
  Status wait_and_receive(const Look& look, const WaitContext& wait) {
    ClaimHooks claiming(parts_.watchers, wait.hooks);
    const WaitContext by{wait.deadline, wait.hooks == nullptr ? nullptr : &claiming};
    for (;;) {
      Status waited = wait_until_ready(by);
      if (!waited) return waited;
      auto got = look_once(look, by);
      if (!got) return std::move(got).error();
      if (*got) return success();
    }
  }
  Status wait_until_ready(const WaitContext& wait);
  template <class Ready>
  Status wait_for_messages(const Ready& is_ready, const WaitContext& wait) const;
  Result<bool> get_now(Incoming& out, Identity me, const WaitContext& wait);
  void drop_next(Drop& drop, Identity me) noexcept;
  bool receive_next(Incoming& out, Identity me, Receipt& receipt) noexcept;
  bool receive_returned(Incoming& out, Identity me, Receipt& receipt) noexcept;

  Parts& parts_;
  Spinner spinner_;
};

}  // namespace shmtree::channel
