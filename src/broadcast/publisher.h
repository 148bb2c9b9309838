// An object by which a program puts into a Broadcast or a Latest. It records the ticket of the last message that it has
// put. A process that has put stays a publisher until it has closed its last such object and no thread is in a put.
//
// Thread safety: any thread. A forked child inherits the object as one of its own.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "broadcast/ring.h"

namespace shmtree::broadcast {

class Publisher {
 public:
  explicit Publisher(std::shared_ptr<Ring> ring) noexcept : ring_(std::move(ring)) { ring_->join(); }
  ~Publisher() { close(); }
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  const std::shared_ptr<Ring>& ring() const noexcept { return ring_; }

  // Puts a message, like Ring::put(). kInterrupted if the object is closed.
  Result<std::uint64_t> put(Outgoing& outgoing, const WaitContext& wait) {
    const Ring::Call call(*ring_, ring_.get());
    if (closed_.load(std::memory_order_relaxed)) return Error{.code = Code::kInterrupted, .message = "closed"};
    auto ticket = ring_->put(outgoing, wait);
    if (ticket) end_.store(*ticket + 1, std::memory_order_relaxed);
    return ticket;
  }
  // Waits until all blocking readers have passed the message with that ticket; by default, the last message that this
  // object has put. Errors are those of Ring.
  Status wait_until_passed(std::optional<std::uint64_t> ticket, const WaitContext& wait) const {
    const std::uint64_t end = ticket ? *ticket + 1 : end_.load(std::memory_order_relaxed);
    return end == 0 ? success() : ring_->wait_until_passed(end - 1, wait);
  }
  // Number of messages that a blocking reader has not read, up to the last one that this object has put.
  std::uint64_t pending() const noexcept { return ring_->unread_before(end_.load(std::memory_order_relaxed)); }

  // Wakes all waiting threads, which check their conditions again.
  void wake() noexcept { ring_->wake(); }
  // Closes the object. Later puts fail, and waiting calls wake up. Idempotent. Readers get the failure, if any, once
  // this process has closed its last object.
  void close(memory::Failure failure = memory::Failure::kNone) noexcept {
    if (closed_.exchange(true, std::memory_order_relaxed)) return;
    ring_->part(failure);
    ring_->wake();
  }

 private:
  const std::shared_ptr<Ring> ring_;
  std::atomic<std::uint64_t> end_{0};  // ticket after that of the last message that this object has put
  std::atomic<bool> closed_{false};
};

}  // namespace shmtree::broadcast
