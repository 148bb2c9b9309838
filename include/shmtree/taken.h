/// @file
/// Messages that a receiver has taken. They are redelivered unless acked.
///
///     shmtree::TakenItem job = receiver.take().value();
///     work(job.item());
///     job.ack().value();
///
/// Ownership: a Taken keeps the message, and the result of item() keeps the memory alive. Thread safety: values.
#pragma once

#include <cstdint>
#include <memory>

#include "shmtree/base/result.h"
#include "shmtree/flat.h"
#include "shmtree/item.h"

namespace shmtree {

namespace detail {
struct TakenAccess;
}

/// A taken message, as an Item, a FlatItem or a Frame. Unless it is acked, it returns to the channel: by nack(), with
/// the destructor, or when the process dies. Another receiver gets it then. A message that was taken `max_attempts`
/// times becomes a dead letter instead (Receiver::dead_letters()), until it is acked or requeued.
template <class T>
class Taken {
 public:
  /// A moved-from object has no message.
  Taken(Taken&& other) noexcept;
  /// Returns the previous message of this object to the channel.
  Taken& operator=(Taken&& other) noexcept;
  /// Returns the message to the channel unless it was acked, nacked or requeued.
  ~Taken();

  /// Returns the message. Copies may outlive this object. They stay unchanged after nack() and requeue(): while they
  /// exist, the next receiver gets a copy of the memory.
  const T& item() const& noexcept;
  /// Returns a copy, since the Taken is a temporary and its destructor returns the message to the channel.
  T item() && { return item(); }
  /// Returns the ticket that put() returned for the message.
  std::uint64_t ticket() const noexcept;
  /// Returns how often the message was taken, including this time.
  std::uint32_t attempts() const noexcept;
  /// True if the message was taken before.
  bool redelivered() const noexcept { return attempts() > 1; }
  /// Reports the message as processed. kInvalid: it was already acked, nacked or requeued, or this is a forked child.
  Status ack();
  /// Gives the message to another receiver, before all queued messages. Errors are those of ack().
  Status nack();
  /// Returns the message to the channel as if it had never been taken. Errors are those of ack().
  Status requeue();

 private:
  friend struct detail::TakenAccess;
  struct State;
  explicit Taken(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// The result of Receiver::take().
using TakenItem = Taken<Item>;
/// The result of Receiver::take_bytes().
using TakenBytes = Taken<FlatItem>;
extern template class Taken<Item>;
extern template class Taken<FlatItem>;

}  // namespace shmtree
