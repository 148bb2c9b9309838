// Receives messages: first returned ones, oldest first, then those of the ring.
//
// Invariants:
//   - The store of `head`, or of a record's state, receives a message. Its block is pinned before that.
//   - A call that was woken for messages, and leaves some, wakes the next waiter.
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

  // Receives a message into `out`, which must be empty. Writing into `out` saves one copy of an inline frame. kEmpty:
  // no message in time; kClosed, kPeerDied or kShutDown: the stream has ended.
  Status get(Incoming& out, const WaitContext& wait);
  // Receives up to `most` small messages that can be received now, under one lock: see RingHead::receive_run(). visit()
  // runs under the receivers' lock, so it must be short. Receives nothing while messages that came back are due first,
  // or on any error; the next get() reports it.
  template <class Visit>
  std::size_t receive_run(std::size_t most, const Visit& visit) {
    ChannelHeader& shared = parts_.control.shared;
    const WaitContext at_once{platform::Deadline::immediate()};
    if (most == 0 || !parts_.head.has_messages() || parts_.unreturned.count() != 0) return 0;
    if (!parts_.control.arena.reconciler().lock_quietly(shared.receivers_lock, at_once)) return 0;
    Receipt receipt;
    const bool may_receive = access() == Access::kFree && platform::load_relaxed(shared.returned) == 0;
    const std::size_t count = may_receive ? parts_.head.receive_run(most, receipt, visit) : 0;
    parts_.control.arena.unlock(shared.receivers_lock);
    receipt.release_spent(parts_.control.arena);
    if (count != 0) parts_.watchers.announce_received();
    return count;
  }
  // Waits until get() would return a message or the end of the stream at once. Receives nothing. kEmpty: not in time.
  Status poll(const WaitContext& wait);
  // Calls poll(me, wait) until it returns true, which means that it has received a message. Waits between the calls.
  // Returns the errors of get().
  template <class Poll>
  Status receive_by(const Poll& poll, const WaitContext& wait) {
    auto got = try_once(poll, wait);
    if (got && !*got) return wait_and_receive(poll, wait);
    return got ? success() : Status(std::move(got).error());
  }
  // Drops the oldest message and counts it. False if there is none that can be received now.
  Result<bool> drop_oldest(const WaitContext& wait);
  // drop_oldest() in two steps, for a caller that holds the senders' lock. Under this lock, a caller may neither wait
  // nor take the arena's lock. Call try_drop_oldest() with that lock; it also returns false if the receivers' lock is
  // busy. Call finish() without the lock.
  struct Drop {
    Incoming message;
    Receipt receipt;
    bool dropped = false;
  };
  bool try_drop_oldest(Drop& drop, Identity me) noexcept;
  void finish(Drop& drop) noexcept;
  // Says if this process may receive now. Under the receivers' lock.
  enum class Access { kFree, kReserved, kShutDown };
  Access access() const noexcept;
  // Drops messages that a shutdown discarded. Every process that finds some does so, since the one that shut down the
  // queue may have died.
  Status discard_queued(const WaitContext& wait);
  // Returns the error of a call that found the queue discarded by its shutdown.
  Error discarded(const WaitContext& wait);

 private:
  template <class Poll>
  Result<bool> try_once(const Poll& poll, const WaitContext& wait) {
    Status rejected = parts_.returns.reject_given_up(wait);
    if (!rejected) [[unlikely]]
      return in_time(std::move(rejected).error(), Code::kEmpty);
    auto me = parts_.control.arena.identity();  // again, since a wait may fork
    if (!me) return std::move(me).error();
    Status peers = parts_.ends.check_deaths(End::kSending);
    if (!peers) [[unlikely]]
      return std::move(peers).error();
    auto got = poll(*me, wait);
    if (!got) {
      parts_.watchers.leave_messages_to_others();  // another process may have the memory that this one lacks
    } else if (!*got) {
      parts_.membership.mark_used(End::kReceiving, *me);
    }
    return got;
  }
  template <class Poll>
  Status wait_and_receive(const Poll& poll, const WaitContext& wait) {
    ClaimHooks claiming(parts_.watchers, wait.hooks);
    const WaitContext by{wait.deadline, wait.hooks == nullptr ? nullptr : &claiming, wait.spin};
    for (;;) {
      Status waited = wait_until_ready(by);
      if (!waited) return waited;
      auto got = try_once(poll, by);
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
