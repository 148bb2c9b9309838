// A reader of a Broadcast. It has a cursor, which the first process that reads from it claims. Until then, the cursor
// belongs to every process that holds the subscription's block, or to which it is in transit. It is freed when the last
// of these processes detaches. Once claimed, the cursor belongs to the claiming process alone.
//
// If the caller of get() cannot build the object of a message, it gives the message back. The message stays in this
// process: the next get() returns it before any other, unless the policy is kLatest and there is a newer one. For the
// processes that put, the message has been read.
//
// Thread safety: several threads may read; each message goes to one of them.
#pragma once

#include <atomic>
#include <memory>

#include "broadcast/doorbell.h"
#include "broadcast/subscription.h"
#include "platform/fork.h"

namespace shmtree::broadcast {

// Memory into which get() reads a message. It is allocated before the message is read, so that give_back() needs no
// memory.
struct Received {
  Incoming message;
  std::unique_ptr<Received> next{};  // the next buffer in the list of returned messages
};

// Number of failed builds in a row after which a message is given up, so that the reader reaches the next one.
constexpr std::uint32_t kMaxFailedBuilds = 8;

enum class FailedBuild { kCounted, kInterrupted };

class Subscriber {
 public:
  static Result<std::unique_ptr<Subscriber>> create(std::shared_ptr<Ring> ring, Policy policy, bool from_oldest,
                                                    const WaitContext& wait);
  // Opens the subscription in `block`, which another process has made. Returns kNotFound if no process holds it any
  // more, or if the process that claimed it has closed it or died.
  static Result<std::unique_ptr<Subscriber>> open(const std::shared_ptr<Arena>& arena, BlockRef subscription,
                                                  const WaitContext& wait);
  // Like close(), but a transfer of the subscription lasts until it arrives, or until this process exits.
  ~Subscriber();
  Subscriber(const Subscriber&) = delete;
  Subscriber& operator=(const Subscriber&) = delete;

  const std::shared_ptr<Ring>& ring() const noexcept { return ring_; }
  // Reads the next message.
  //   kEmpty        the deadline has passed
  //   kInterrupted  a hook ended the wait
  //   kClosed       no process puts any more, or the subscription was closed or belongs to another process kPeerDied
  //   no process puts any more, and some that did were killed kOverrun      a reader of Policy::kRaise has missed
  //   messages; nothing was read
  Status get(Incoming& message, const WaitContext& wait);
  // Makes the next get() return a message that could not be built. After kMaxFailedBuilds failures of kind kCounted,
  // drops the message and counts it as missed. Under Policy::kLatest, also drops the message if there is a newer one.
  // Drops the message if the subscription was closed.
  void give_back(std::unique_ptr<Received> received, FailedBuild how) noexcept;
  // Returns true if get() would return, or fail, at once.
  bool ready() const;
  // Returns a descriptor that is readable while ready(), except for deaths; owned by this object. It may be readable
  // for a moment when another thread has just read. Claims the subscription. kClosed as of get(); errors of
  // WakePipe::open(). Sets `opened` to true if there was none before.
  Result<int> fd(bool* opened = nullptr);
  void close_fd() noexcept;
  // Number of messages that the reader can read now, and number of messages that it has missed so far.
  std::uint64_t size() const noexcept;
  std::uint64_t missed() const noexcept { return platform::load_relaxed(cursor().missed); }
  std::uint32_t number() const noexcept { return number_; }
  // Returns the subscription's block, for another process. kClosed if a process has claimed the subscription, or it was
  // closed.
  Result<BlockRef> give();
  // Wakes all waiting threads, which check their conditions again.
  void wake() noexcept { ring_->wake(); }
  // Closes the subscription in this process, and ends its transfers that have not arrived. Puts stop waiting for the
  // subscription, unless another process has it.
  void close() noexcept;

 private:
  Subscriber(std::shared_ptr<Ring> ring, std::uint32_t number, Owner owner, memory::Lease subscription) noexcept
      : ring_(std::move(ring)), number_(number), owner_(owner), subscription_(std::move(subscription)) {}
  Cursor& cursor() const noexcept { return ring_->cursor(number_); }
  Status get_now(Incoming& message);
  Status claim(Identity me, memory::Lease& released);
  Status get_claimed(Incoming& message, bool& moved);
  bool catch_up(bool& moved) noexcept;
  bool take_given_back(Incoming& message) noexcept;
  void keep(std::unique_ptr<Received>& received) noexcept;
  void count_missed(std::uint64_t count) noexcept;
  bool must_report_overrun() const noexcept { return owner_.policy == Policy::kRaise && missed() != reported_; }
  Error overrun();
  void refresh_bell() noexcept;
  std::unique_ptr<Received> take_all_given_back() noexcept;
  memory::Lease take_subscription() noexcept;
  enum class OwnTransfers { kKeep, kEnd };
  void leave(OwnTransfers transfers) noexcept;

  const std::shared_ptr<Ring> ring_;
  const std::uint32_t number_;
  const Owner owner_;  // owns the cursor until a process claims it
  // Guards reads. No thread sleeps while it has the mutex. The arena's mutexes, which are taken inside, were made
  // earlier (see the order in fork.h).
  platform::ForkSafeMutex mutex_;
  Doorbell bell_;                           // under mutex_
  std::uint64_t reported_ = 0;              // under mutex_; `missed` as last reported
  std::unique_ptr<Received> given_back_{};  // under mutex_; sorted by ticket
  std::atomic<std::uint64_t> given_back_count_{0};
  memory::Lease subscription_;  // under mutex_; empty once another process has claimed it, or it was closed
};

}  // namespace shmtree::broadcast
