/// @file
/// Messages that were taken, and come back unless they are acknowledged.
///
///     shmtree::TakenItem job = receiver.take().value();
///     work(job.item());
///     job.ack().value();
///
/// Ownership: it keeps the message, and what item() returns a hold on its memory. Thread safety: values.
#pragma once

#include <cstdint>
#include <memory>

#include "shmtree/flat.h"
#include "shmtree/item.h"
#include "shmtree/result.h"

namespace shmtree {

namespace detail {
struct TakenAccess;
}

/// A message taken, as an Item or a FlatItem. Unless it is acknowledged it goes back to the channel: at nack(), with
/// the object, or when the process dies; someone else gets it then, or nobody if it was taken `max_attempts` times: it
/// is among Receiver::rejected() then, and stays there until it is acknowledged or requeued.
template <class T>
class Taken {
 public:
  /// What was moved from has no message.
  Taken(Taken&& other) noexcept;
  /// Gives the message back that it had.
  Taken& operator=(Taken&& other) noexcept;
  /// Gives the message back unless it was settled.
  ~Taken();

  /// The message; copies of it outlive this. After nack() and requeue() they show what its next receiver writes there.
  const T& item() const noexcept;
  /// What put() returned for it.
  std::uint64_t ticket() const noexcept;
  /// How often it was taken, this time included.
  std::uint32_t attempts() const noexcept;
  /// Whether somebody had it before.
  bool redelivered() const noexcept { return attempts() > 1; }
  /// It was dealt with. kInvalid when it was settled before, or in a forked child.
  Status ack();
  /// Someone else gets it, before all that is queued. Errors as of ack().
  Status nack();
  /// Gives it back as if it had never been taken. Errors as of ack().
  Status requeue();

 private:
  friend struct detail::TakenAccess;
  struct State;
  explicit Taken(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// What Receiver::take() returns.
using TakenItem = Taken<Item>;
/// What Receiver::take_bytes() returns.
using TakenBytes = Taken<FlatItem>;
extern template class Taken<Item>;
extern template class Taken<FlatItem>;

}  // namespace shmtree
