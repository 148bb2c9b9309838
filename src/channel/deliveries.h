// Messages taken, each with a record that keeps it until it is acknowledged; and those that were given up: taken as
// often as the channel's `max_attempts` says and not acknowledged. They keep their records, and their memory, until
// somebody decides what becomes of them.
//
// Order of stores: a record is written, its state last, then `head`. A record whose ticket is not below `head` does not
// count.
//
// Thread safety: any thread; none for a Delivery.
#pragma once

#include <vector>

#include "channel/receiving.h"

namespace shmtree::channel {

class Deliveries;

// A message taken. Goes back to the channel unless it is acknowledged: at nack(), at the end of the object, or when the
// process dies. It is rejected then if its attempts are used up, if kMaxFailedBuilds receivers in a row had no memory
// for it, or if it was rejected before. requeue() gives it back as if it had never been taken. Code::kInvalid when it
// was settled already, or by a forked child, which has no part in it.
class Delivery {
 public:
  Delivery() noexcept = default;
  Delivery(Delivery&& other) noexcept { *this = std::move(other); }
  Delivery& operator=(Delivery&& other) noexcept;
  ~Delivery() { give_up(); }

  Incoming& message() noexcept { return message_; }
  bool settled() const noexcept { return of_ == nullptr; }
  // Not in a forked child, which does not hold the message, settled or not.
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
  std::uint64_t word_ = 0;  // the record's, while the message is ours
  Incoming message_;
};

class Deliveries {
 public:
  Deliveries(Parts& parts, Receiving& receiving) noexcept : parts_(parts), receiving_(receiving) {}

  // Waits as Receiving::get() does, and while `max_unsettled` messages are taken. `self` keeps the channel as long as
  // there are deliveries of it.
  Result<Delivery> take(std::shared_ptr<Deliveries> self, const WaitContext& wait);
  // What was given up after `max_attempts`, oldest first, and is with nobody: it is with this process until settled.
  // Acked it is gone, nacked or dropped it stays rejected. Looking does not count as a use of this end.
  Result<std::vector<Delivery>> rejected(const std::shared_ptr<Deliveries>& self, const WaitContext& wait);
  // For a taker that is to be replaced when it was killed, and has written down what it does with each message: what it
  // has taken must not go to others then. This process's takes are left to the heir, as those of no other are.
  Status leave_to_heir();
  // What is left comes to this process, which keeps it for the one that replaces the taker, as long as it lives.
  Status become_heir();
  // What was left to the heir, oldest first: it is this process's from here on. Each counts as often taken as before.
  Result<std::vector<Delivery>> inherited(const std::shared_ptr<Deliveries>& self, const WaitContext& wait);

 private:
  friend class Delivery;
  enum class Took { kOne, kNone, kNeedsRecord, kLeft, kTooMany };
  Took take_locked(Identity me, Delivery& delivery, Receipt& receipt) noexcept;
  Took take_from_ring(Identity me, Delivery& delivery, Receipt& receipt) noexcept;
  Result<bool> take_now(Identity me, Delivery& delivery, const WaitContext& wait);
  Status try_take(Identity me, Delivery& delivery, const WaitContext& wait);
  Status wait_until_settled(const WaitContext& wait);
  void look_for_dead_takers(const WaitContext& wait) const noexcept;
  void copy_slot(RingSlot& to, const RingSlot& from) const noexcept;
  Status recover(const WaitContext& wait);
  // `state` of those that `from` has, which may be nobody.
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
  void hand_out(Record& record, std::uint64_t word, Delivery& delivery) noexcept;

  Parts& parts_;
  Receiving& receiving_;
};

}  // namespace shmtree::channel
