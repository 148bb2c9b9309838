// A ring of messages in shared memory: any process puts, and any process reads without a lock. In a Broadcast, each
// reader reads the messages in order and has a cursor. In a Latest, the messages are versions, which readers read by
// number. See docs/internals/broadcast-layout.md for the order of stores.
//
// Invariants:
//   - A message that can be read is whole, and is not overwritten before every blocking cursor has passed it.
//   - An entry's block is freed only after its ticket was cleared and a full fence was executed, and after the block's
//     holders were checked. A reader pins the block first, and then checks the ticket again.
//   - Messages are numbered consecutively. A process that is killed in a put has put the message or nothing.
//   - A put waits only for living readers of Policy::kBlock.
//
// Thread safety: any thread of any process. Calls about one cursor: one thread at a time.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "broadcast/doorbell.h"
#include "memory/arena.h"
#include "memory/control_block.h"
#include "memory/event.h"
#include "platform/dcheck.h"
#include "platform/fork.h"
#include "platform/in_use.h"
#include "platform/wait_policy.h"

namespace shmtree::broadcast {

using memory::Arena;
using memory::BlockRef;
using platform::WaitContext;

struct Options {
  std::uint64_t capacity = 8;  // messages by which the slowest blocking reader may lag
  std::uint64_t history = 0;   // messages that are kept for later readers
  // Limit on the bytes of the messages that a blocking reader has not read; 0: no limit.
  std::uint64_t max_bytes = 0;
  bool allow_pickle = true;  // read by encoders; stored in the ring
  // Readers wait for the next publisher, so the stream does not end when the last publisher closes.
  bool waits = false;
};

// A message to put: a block of kind kPublished that begins with a frame of `bytes`, or a small frame. A put that fails
// leaves the block in `held`, for another attempt.
struct Outgoing {
  memory::OwnedBlock block{};
  memory::Lease held{};
  std::uint64_t bytes = 0;
  std::span<const std::byte> frame{};
};

// A message that was read: a pinned block, or a small frame.
struct Incoming {
  std::uint64_t ticket = 0;
  memory::Lease block{};
  std::uint64_t bytes = 0;
  std::uint32_t failed_builds = 0;  // failed builds in a row; see Subscriber::give_back()
  alignas(64) std::byte small[kInlineBytes];

  std::span<const std::byte> frame() const noexcept { return {block.valid() ? block.data() : small, bytes}; }
};

class Ring : public std::enable_shared_from_this<Ring> {
 public:
  // Creates a ring. kInvalid for a capacity of 0, or for a ring that is too long. Other errors are those of
  // Arena::allocate().
  static Result<std::shared_ptr<Ring>> create(std::shared_ptr<Arena> arena, const Options& options,
                                              const WaitContext& wait, const RingUse& use = kBroadcastUse);
  // Opens a ring by its control block. Returns this process's existing object if it has one. kNotFound, kIncompatible.
  static Result<std::shared_ptr<Ring>> open(const std::shared_ptr<Arena>& arena, BlockRef block,
                                            const WaitContext& wait, const RingUse& use = kBroadcastUse);
  ~Ring();

  const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }
  BlockRef block() const noexcept { return control_.ref(); }
  std::uint64_t capacity() const noexcept { return capacity_; }
  std::uint64_t history() const noexcept { return history_; }
  // Returns kInvalid, with both values of each option that differs, if the ring was created with other options.
  Status check_options(const Options& options) const;
  std::uint64_t tail() const noexcept { return platform::load_acquire(header().tail); }

  // --- Putting

  // Puts a message and returns its ticket. Waits while a living blocking reader lags by `capacity` messages; kFull
  // names that reader. kTimeout if a stopped process has the ring's lock or the arena's; kInterrupted.
  Result<std::uint64_t> put(Outgoing& outgoing, const WaitContext& wait);
  // Waits until all blocking readers have passed the ticket. kTimeout, kInterrupted; kInvalid for a ticket that put()
  // has not returned.
  Status wait_until_passed(std::uint64_t ticket, const WaitContext& wait);
  // Waits until there are at least `count` subscriptions. kTimeout, kInterrupted.
  Status wait_for_readers(std::uint64_t count, const WaitContext& wait);
  // Returns true if a small message could be put without waiting.
  bool has_space() noexcept;
  // Ticket of the oldest message that a blocking reader has not read; tail() if there is none. There is space for a
  // message that did not fit only after this has changed.
  std::uint64_t first_unread() const noexcept { return cursors().slowest(Readers::kBlocking).position; }
  // Requests one wake text at `hub`, a hub of this process. A process that moves or frees a cursor sends space_name()
  // there if the ring then has space for a small message. Check first_unread() after the call.
  Status await_space(platform::WakeAddress hub);
  platform::WakeText space_name() const noexcept { return space_hubs().name(); }
  // Number of messages before that ticket that a blocking reader has not read.
  std::uint64_t unread_before(std::uint64_t ticket) const noexcept;
  // The slowest blocking reader, if it has unread messages and no process has ever claimed its subscription.
  struct Blocker {
    std::uint64_t position;
    std::string process;  // "process 5 has"
  };
  std::optional<Blocker> unused_blocker() const;
  std::vector<int> publishers() const { return publishing().pids(); }
  // Wakes all waiting threads, which check their conditions again.
  void wake() noexcept;
  // join() and part() count the objects by which this process puts. When the last object has parted and no thread is in
  // a Call, the process stops being a publisher, even if it has readers. If an object has parted with a failure,
  // readers get kPeerDied with that failure.
  void join() noexcept;
  void part(memory::Failure failure) noexcept;
  // Records, before the first message, that this process has such an object, so that readers detect its death.
  void note_object() const noexcept;
  using Call = platform::CallOf<Ring>;
  // Ends this process's part as a publisher, until its next put.
  void leave() noexcept;
  static void leave_all() noexcept;

  // --- Reading: for subscriber.h, and the versions of a Latest

  // Adds an unclaimed cursor for the processes that hold `subscription`. kInvalid when all are taken.
  Result<std::uint32_t> subscribe(Policy policy, bool from_oldest, BlockRef subscription, Owner* owner,
                                  const WaitContext& wait);
  Cursor& cursor(std::uint32_t number) const noexcept { return cursors_of(header())[number]; }
  // The cursors that processes have claimed.
  struct Position {
    std::uint32_t cursor;
    int pid;
    std::uint64_t next;  // ticket of the next message to read
  };
  std::vector<Position> positions() const;
  // Ticket of the oldest message that a reader that does not block can read.
  std::uint64_t oldest() const noexcept;
  // Reads the message of that ticket; kNotFound if it was overwritten.
  Status read(std::uint64_t ticket, Incoming& message) const;
  // Pins the block of the message with that ticket, if it has one, and stores the size of its frame in `bytes`.
  Result<memory::Lease> read_block(std::uint64_t ticket, std::uint64_t* bytes) const;
  // Calls poll() until it returns something other than kEmpty, and sleeps meanwhile until a message is put or the
  // deadline passes. After poll() has seen all that was put, returns the error of check_publishers(). The error
  // kInterrupted names `waited_for`.
  template <class Poll, class Polled>
  Status wait_for_item(memory::WaitFor what, const char* waited_for, const WaitContext& wait, Poll poll,
                       Polled polled) const;
  // Frees the cursors of dead readers, and wakes the processes that wait for space. Returns true if there were any.
  bool drop_dead() noexcept;
  // Wakes the processes that wait for space, and frees the messages that all cursors have passed. Call it after a
  // cursor has moved or was dropped.
  void free_passed() noexcept;
  // Approximate bytes of the messages that the ring keeps; for a Broadcast, including the arrays to which they refer.
  std::uint64_t kept_bytes() const noexcept;
  // Bytes of a message's frame; 0 if it was overwritten.
  std::uint64_t frame_bytes(std::uint64_t ticket) const noexcept;
  // Drops the oldest messages that have blocks until at least `bytes` are freed. Keeps the history, and messages that a
  // blocking reader has not read. Readers that do not block miss the dropped messages. Returns false if it dropped
  // none, or got no lock.
  bool drop_oldest(std::uint64_t bytes, const WaitContext& wait) noexcept;
  // Returns kPeerDied or kClosed if no publisher is left; before the first message, if no process is left that could
  // publish.
  Status check_publishers() const;
  bool allows_pickle() const noexcept { return has_flag(kPickles); }
  // From this call on, processes that put notify the readers that request it (doorbell.h).
  void announce_bells() noexcept {
    platform::store_seq_cst(header().has_bells, 1u);
    note_reader();
  }
  // Requests one wake text at `hub`, a hub of this process. The next put, or the last publisher when it leaves, sends
  // name() there. Check for a message after the call.
  Status await(platform::WakeAddress hub);
  platform::WakeText name() const noexcept { return hubs().name(); }
  Cursors cursors() const noexcept { return {*arena_, header(), use_.cursors}; }

  // Number of cursors, including cursors of dead processes.
  std::uint32_t readers() const noexcept { return cursors().count(); }

 private:
  Ring(std::shared_ptr<Arena> arena, memory::Lease control, const RingUse& use);
  static std::shared_ptr<Ring> registered(std::shared_ptr<Ring> ring);
  friend Call;
  void after_use() noexcept {
    if (ends_.load(std::memory_order_relaxed) == 0) [[unlikely]]
      leave_if_unused();
  }
  void leave_if_unused() noexcept;
  bool may_have_other_publishers() const noexcept;
  void note_role() const noexcept;
  void note_reader() const noexcept;

  RingHeader& header() const noexcept { return *reinterpret_cast<RingHeader*>(control_.data()); }
  bool has_flag(std::uint32_t flag) const noexcept { return (platform::load_once(header().flags) & flag) != 0; }
  Entry& entry_at(std::uint64_t index) const noexcept {
    SHMTREE_DCHECK(index < entries_);
    return *reinterpret_cast<Entry*>(ring_ + index * entry_bytes_);
  }
  Entry& entry(std::uint64_t ticket) const noexcept { return entry_at(ticket % entries_); }
  std::uint64_t inline_bytes() const noexcept { return entry_bytes_ - sizeof(Entry); }
  memory::Publishers publishing() const noexcept { return {arena_->participants(), header().publishers}; }
  Hubs hubs() const noexcept { return {*arena_, block(), Awaited::kMessages, header().awaiting_messages}; }
  Hubs space_hubs() const noexcept { return {*arena_, block(), Awaited::kSpace, header().awaiting_space}; }
  memory::ReferenceList references() const noexcept { return {*arena_, list_}; }
  Result<memory::Lease> hold(const Entry& from, std::uint64_t ticket, BlockRef block, std::uint64_t bytes) const;
  std::uint64_t referred_bytes(BlockRef block) const noexcept;
  bool has_space(const Cursors::Slowest& slowest, std::uint64_t bytes) const noexcept;
  void poll_for_deaths() noexcept;
  void announce() const noexcept;
  void announce_space() noexcept;
  // Says how many messages that reader has not read.
  std::string unread_by(const Cursors::Slowest& slowest) const;
  Error full(const Cursors::Slowest& slowest, std::uint64_t bytes) const;
  // needed() returns the oldest ticket that a reader may still read, or that is part of the history.
  // has_passed_blocks() returns true if an older message still has a block.
  std::uint64_t needed() const noexcept;
  bool has_passed_blocks() const noexcept;

  // The ring's lock guards the ring. An operation that adds or removes a reference to a block takes the arena's
  // lock first, then the ring's. The owner of a ring's lock waits for nothing, so a process with the arena's lock has
  // to wait only briefly for it.
  enum class Locks { kRing, kArenaAndRing };
  Status lock(Locks locks, const WaitContext& wait);
  // Takes the ring's lock, and before it the arena's lock if touches_blocks(). Then repairs the ring if an operation
  // was cut off. Returns the locks that it took.
  Result<Locks> lock_and_repair(Locks locks, const WaitContext& wait);
  void unlock(Locks locks) noexcept;
  bool touches_blocks() const noexcept;

  // Under the ring's lock.
  bool has_space_now(std::uint64_t bytes) noexcept;
  std::uint64_t first_kept() const noexcept;
  // The caller holds both locks. For a small message, the ring's lock is enough if touches_blocks() is false.
  void repair() noexcept;
  void remove_entry(std::uint64_t index, Locks locks) noexcept;
  void remove_passed() noexcept;
  std::uint64_t write(const Outgoing& outgoing, std::uint64_t bytes, std::uint64_t counted, Locks locks) noexcept;

  const std::shared_ptr<Arena> arena_;
  const memory::Lease control_;
  const RingUse& use_;
  const std::uint64_t entries_, entry_bytes_, capacity_, history_, max_bytes_;
  std::byte* const ring_;
  memory::ListEntry* const list_;
  mutable platform::ForkSafeMutex ends_mutex_;
  std::atomic<std::uint32_t> ends_{0};                // changed under ends_mutex_
  memory::Failure failure_ = memory::Failure::kNone;  // under ends_mutex_: failure of an object that has parted
  std::atomic<std::int64_t> last_poll_ns_{0};
};

template <class Poll, class Polled>
Status Ring::wait_for_item(memory::WaitFor what, const char* waited_for, const WaitContext& wait, Poll poll,
                           Polled polled) const {
  Status found = success();
  const memory::TakingCondition ready([&] {
    found = poll();
    return found.ok() || found.code() != Code::kEmpty;
  });
  const auto before_sleep = [&](bool) -> Result<bool> {
    if (!wait.deadline.is_immediate()) note_reader();
    if (Status attended = check_publishers(); !attended) {
      if (ready()) return true;  // the last publisher put it before it left
      return std::move(attended).error();
    }
    if (wait.deadline.is_immediate()) return false;
    return memory::recover_from_deaths(*arena_, platform::wait_policy::alive_within_ns(true), wait);
  };
  memory::EventWait waiting(header().items, {arena_->participants(), what, memory::pack(block())}, wait);
  auto came = memory::wait_until(waiting, wait, waited_for, ready, before_sleep, polled);
  if (!wait.deadline.is_immediate() && !(came && found.ok())) note_object();  // counts again as possible publisher
  if (!came) return std::move(came).error();
  return found;
}

}  // namespace shmtree::broadcast
