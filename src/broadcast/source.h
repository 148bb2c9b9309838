// An object of a program's that puts into a Broadcast: what it has put last, and its part in putting, until it is
// closed.
//
// Thread safety: any thread. A child that was forked has the object too, as one of its own.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "broadcast/ring.h"

namespace shmtree::broadcast {

class Source {
 public:
  explicit Source(std::shared_ptr<Ring> ring) noexcept : ring_(std::move(ring)) { ring_->join(); }
  ~Source() { close(); }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  const std::shared_ptr<Ring>& ring() const noexcept { return ring_; }

  // As Ring::put().
  Result<std::uint64_t> put(Outgoing& outgoing, const WaitContext& wait) {
    auto ticket = ring_->put(outgoing, wait);
    if (ticket) end_.store(*ticket + 1, std::memory_order_relaxed);
    return ticket;
  }
  // Until all blocking readers have passed that message, or what this object has put. Errors as of Ring.
  Status wait_until_passed(std::optional<std::uint64_t> ticket, const WaitContext& wait) const {
    const std::uint64_t end = ticket ? *ticket + 1 : end_.load(std::memory_order_relaxed);
    return end == 0 ? success() : ring_->wait_until_passed(end - 1, wait);
  }
  // Messages, up to the last that this object has put, that a blocking reader has not read.
  std::uint64_t pending() const noexcept { return ring_->unread_before(end_.load(std::memory_order_relaxed)); }

  // Wakes whoever waits, to look again.
  void wake() noexcept { ring_->wake(); }
  // It puts no more, and whoever waits in a call of it looks again. More than once does nothing.
  void close() noexcept {
    if (closed_.exchange(true, std::memory_order_relaxed)) return;
    ring_->part();
    ring_->wake();
  }

 private:
  const std::shared_ptr<Ring> ring_;
  std::atomic<std::uint64_t> end_{0};  // of its own puts
  std::atomic<bool> closed_{false};
};

}  // namespace shmtree::broadcast
