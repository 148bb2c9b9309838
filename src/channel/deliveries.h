// Messages that were taken, each with a record that keeps it until it is acked; and messages that were rejected: taken
// `max_attempts` times and never acked. Rejected messages keep their record and their memory until a process acks them.
//
// Order of stores: a record is written, its state last, then `head`. A record counts only if its ticket is below
// `head`.
//
// Thread safety: any thread; none for one Delivery.
#pragma once

#include <vector>

#include "channel/receiving.h"

namespace shmtree::channel {

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
  Deliveries(Parts& parts, Receiving& receiving) noexcept : parts_(parts), receiving_(receiving) {}

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

  Parts& parts_;
  Receiving& receiving_;
};

}  // namespace shmtree::channel
