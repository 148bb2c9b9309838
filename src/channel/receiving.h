// Receives messages: get() removes a message, and take() keeps it in a record until it is acked. Messages that were
// taken `max_attempts` times and never acked are rejected: they keep their record and their memory until a process acks
// them.
//
// Invariants:
//   - The store of `head`, or of a record's state, receives a message. Its block is pinned before that.
//   - A record is written, its state last, then `head`. A record counts only if its ticket is below `head`.
//   - A call that was woken for messages, and leaves some, wakes the next waiter.
//
// Thread safety: any thread; none for one Delivery.
#pragma once

#include <vector>

#include "channel/membership.h"
#include "channel/records.h"
#include "channel/watchers.h"
#include "platform/spin.h"

namespace shmtree::channel {

class Receiving {
 public:
  Receiving(const Control& control, RingHead& head, Front& front, const Ends& ends, Watchers& watchers,
            Returns& returns, Membership& membership) noexcept
      : control_(control),
        head_(head),
        front_(front),
        ends_(ends),
        watchers_(watchers),
        returns_(returns),
        membership_(membership) {}

  // Receives a message into `out`, which must be empty. Writing into `out` saves one copy of an inline frame. kEmpty:
  // no message in time; kClosed, kPeerDied or kShutDown: the stream has ended.
  Status get(Incoming& out, const WaitContext& wait);
  // Receives up to `most` small messages that can be received now, under one lock: see RingHead::receive_run(). visit()
  // runs under the receivers' lock, so it must be short. Receives nothing while messages that came back are due first,
  // or on any error; the next get() reports it.
  template <class Visit>
  std::size_t receive_run(std::size_t most, const Visit& visit) {
    ChannelHeader& shared = control_.shared;
    const WaitContext at_once{platform::Deadline::immediate()};
    if (most == 0 || !head_.has_messages() || returns_.has_unreturned()) return 0;
    if (!control_.arena.reconciler().lock_quietly(shared.receivers_lock, at_once)) return 0;
    Receipt receipt;
    const bool may_receive = front_.access() == Front::Access::kFree && platform::load_relaxed(shared.returned) == 0;
    const std::size_t count = may_receive ? head_.receive_run(most, receipt, visit) : 0;
    control_.arena.unlock(shared.receivers_lock);
    receipt.release_spent(control_.arena);
    if (count != 0) watchers_.announce_received();
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

 private:
  template <class Poll>
  Result<bool> try_once(const Poll& poll, const WaitContext& wait) {
    Status rejected = returns_.reject_given_up(wait);
    if (!rejected) [[unlikely]]
      return in_time(std::move(rejected).error(), Code::kEmpty);
    auto me = control_.arena.identity();  // again, since a wait may fork
    if (!me) return std::move(me).error();
    Status peers = ends_.check_deaths(End::kSending);
    if (!peers) [[unlikely]]
      return std::move(peers).error();
    auto got = poll(*me, wait);
    if (!got) {
      watchers_.leave_messages_to_others();  // another process may have the memory that this one lacks
    } else if (!*got) {
      membership_.mark_used(End::kReceiving, *me);
    }
    return got;
  }
  template <class Poll>
  Status wait_and_receive(const Poll& poll, const WaitContext& wait) {
    ClaimHooks claiming(watchers_, wait.hooks);
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

  const Control control_;
  RingHead& head_;
  Front& front_;
  const Ends& ends_;
  Watchers& watchers_;
  Returns& returns_;
  Membership& membership_;
  platform::Spinner spinner_;
};

class Deliveries;

// A message that was taken. It returns to the channel unless it is acked: on nack(), when the object is destroyed, or
// when the process dies. A message is rejected instead if its attempts are used up, if kMaxFailedBuilds receivers in a
// row had no memory for it, or if it was rejected before.
//
// requeue() returns a message as if it had never been taken. kInvalid if the delivery is settled already, or in a
// forked child, which does not own it.
class Delivery {
 public:
  Delivery() noexcept = default;
  Delivery(Delivery&& other) noexcept { *this = std::move(other); }
  Delivery& operator=(Delivery&& other) noexcept;
  ~Delivery() { give_up(); }

  Incoming& message() noexcept { return message_; }
  bool settled() const noexcept { return of_ == nullptr; }
  // False in a forked child, which does not hold the message, settled or not.
  bool is_of_this_process() const noexcept;
  Status ack(const WaitContext& wait) { return settle(Settling::kAck, wait); }
  Status nack(const WaitContext& wait) { return settle(Settling::kNack, wait); }
  Status requeue(const WaitContext& wait) { return settle(Settling::kRequeue, wait); }

 private:
  friend class Deliveries;
  enum class Settling { kAck, kNack, kRequeue };
  Status settle(Settling how, const WaitContext& wait);
  bool settle_locked(Settling how) noexcept;
  std::uint64_t word_after(Settling how) const noexcept;
  void count_builds(Settling how) noexcept;
  void give_up() noexcept;
  std::shared_ptr<Deliveries> of_;
  Record* record_ = nullptr;
  std::uint64_t word_ = 0;  // word of the record while the message is ours
  Incoming message_;
};

class Deliveries {
 public:
  Deliveries(const Control& control, RingHead& head, Records& records, Front& front, const Ends& ends,
             Watchers& watchers, Returns& returns, Membership& membership, Receiving& receiving) noexcept
      : control_(control),
        head_(head),
        records_(records),
        front_(front),
        ends_(ends),
        watchers_(watchers),
        returns_(returns),
        membership_(membership),
        receiving_(receiving) {}

  // Takes a message. Waits like Receiving::get(), and also while `max_unacked` messages are unacked. `self` keeps the
  // channel alive as long as deliveries of it exist.
  Result<Delivery> take(std::shared_ptr<Deliveries> self, const WaitContext& wait);
  // Returns the rejected messages that no process is inspecting, oldest first; this process owns them until it settles
  // them. An ack frees a message. A nack, or the destruction of the delivery, keeps it rejected. Does not count as a
  // use of the receiving end.
  Result<std::vector<Delivery>> dead_letters(const std::shared_ptr<Deliveries>& self, const WaitContext& wait);
  // For a process that logs what it does with each message and that is replaced when it dies. Its unacked messages must
  // then go to its successor, not to other receivers. If this process dies, the messages that it has taken go to the
  // successor. Messages of other processes do not.
  Status leave_to_successor();
  // Makes this process the successor. It keeps the messages of a dead predecessor as long as it lives.
  Status become_successor();
  // Takes over the messages that were left to the successor, oldest first. Their attempts do not change.
  Result<std::vector<Delivery>> inherited(const std::shared_ptr<Deliveries>& self, const WaitContext& wait);

 private:
  friend class Delivery;
  enum class TakeResult { kOne, kNone, kNeedsRecord, kLeft, kTooMany };
  TakeResult take_locked(Identity me, Delivery& delivery, Receipt& receipt) noexcept;
  TakeResult take_from_ring(Identity me, Delivery& delivery, Receipt& receipt) noexcept;
  Result<bool> take_now(Identity me, Delivery& delivery, const WaitContext& wait);
  Status try_take(Identity me, Delivery& delivery, const WaitContext& wait);
  Status wait_until_settled(const WaitContext& wait);
  void poll_for_dead_takers(const WaitContext& wait) const noexcept;
  void copy_slot(RingSlot& to, const RingSlot& from) const noexcept;
  Status recover(const WaitContext& wait);
  // Takes over all messages that have a record with that state and that taker, which may be kNoIdentity.
  Result<std::vector<Delivery>> adopt(const std::shared_ptr<Deliveries>& self, RecordState state, Identity from,
                                      const WaitContext& wait);
  struct Adopting {
    RecordState state;
    Identity from, me;
    bool is(std::uint64_t word) const noexcept {
      return state_of_record(word) == state && taker_of_record(word) == from;
    }
  };
  bool collect(std::vector<Delivery>& found, const Adopting& which, Receipt& receipt) noexcept;
  void fill_delivery(Record& record, std::uint64_t word, Delivery& delivery) noexcept;

  const Control control_;
  RingHead& head_;
  Records& records_;
  Front& front_;
  const Ends& ends_;
  Watchers& watchers_;
  Returns& returns_;
  Membership& membership_;
  Receiving& receiving_;
};

}  // namespace shmtree::channel
