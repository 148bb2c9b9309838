// A reader of a Broadcast: a cursor, which the first process that reads by it claims.
//
// Thread safety: several threads may read; each message goes to one of them. A subscription that was not claimed yet
// may be had by several processes, of which the first to read gets it.
#pragma once

#include <memory>

#include "broadcast/ring.h"
#include "platform/fork.h"

namespace shmtree::broadcast {

class Subscriber {
 public:
  static Result<std::unique_ptr<Subscriber>> create(std::shared_ptr<Ring> ring, Policy policy, bool from_oldest,
                                                    const WaitContext& wait);
  // The subscription of such a number and owner, which another process has made and not claimed.
  static Result<std::unique_ptr<Subscriber>> open(std::shared_ptr<Ring> ring, std::uint32_t number, const Owner& owner);
  ~Subscriber() { close(); }
  Subscriber(const Subscriber&) = delete;
  Subscriber& operator=(const Subscriber&) = delete;

  const std::shared_ptr<Ring>& ring() const noexcept { return ring_; }
  // The next message. kEmpty when the deadline passed, kInterrupted; kClosed when nobody puts any more, or the
  // subscription was closed or is another process's, kPeerDied when one of those who put was killed. `overrun`: nothing
  // was read, since a reader that is told has missed messages.
  struct Got {
    bool overrun = false;
  };
  Result<Got> get(Incoming& message, const WaitContext& wait);
  // Messages that it can read now, and those that it has missed so far.
  std::uint64_t size() const noexcept;
  std::uint64_t missed() const noexcept { return platform::load_relaxed(cursor().missed); }
  std::uint32_t number() const noexcept { return number_; }
  Owner owner() noexcept;
  // It is on its way to another process, which has it from now on as well, as long as this one lives.
  void give() noexcept { given_.store(true, std::memory_order_relaxed); }
  // Nobody waits for it any more; but what another process may have, or has claimed, stays that one's.
  void close() noexcept;

 private:
  Subscriber(std::shared_ptr<Ring> ring, std::uint32_t number, Owner owner) noexcept
      : ring_(std::move(ring)), number_(number), forks_(ring_->arena()->holders().forks()), owner_(owner) {}
  Cursor& cursor() const noexcept { return ring_->cursor(number_); }
  Result<Got> get_now(Incoming& message);
  Status claim();
  bool catch_up(bool* overrun) noexcept;

  const std::shared_ptr<Ring> ring_;
  const std::uint32_t number_;
  const std::uint32_t forks_;  // of this process, when the object was made
  std::atomic<bool> given_{false};
  platform::ForkSafeMutex mutex_;  // who reads; never held in a wait
  Owner owner_;                    // under mutex_
};

}  // namespace shmtree::broadcast
