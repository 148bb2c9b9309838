// A channel: messages from any number of senders to any number of receivers, in the order of each sender, each
// delivered once. Moves inline bytes and block numbers; what is in them is not its business. A facade of its parts,
// each of which looks only at those before it:
//
//   Control     the control block, and the arena that it lies in        control.h
//   TapNotes    what puts leave for who looks on                        tap_notes.h
//   RingTail    where messages are put: room, slots, segments           ring.h
//   RingHead    where they are received                                 ring.h
//   Records     of messages taken and not yet acknowledged              records.h
//   Unreturned  what this process could not give back                   message.h
//   Ends        who takes part in an end, and when a stream has ended   ends.h
//   Deadlock    the proof that a call waits for ever                    deadlock.h
//   wait_for_peers()  blocks while a process is attached to the other end   peer_wait.h
//   WakeHub     by which a process is told of any number of ends        wake_hub.h
//   Watchers    who waits, and how they are told                        watchers.h
//   ClaimHooks  hides a message that a woken thread is about to receive claim.h
//   Returns     what was received and is given back                     returns.h
//   Membership  what this process has of the ends                       membership.h
//   Acks        what became of the messages that this process has put   acks.h
//   Receiving   getting                                                 receiving.h
//   Sending     putting                                                 sending.h
//   Deliveries  taking, and what was given up                           deliveries.h
//   Tasks       what a queue has besides                                tasks.h
//   Tap         looking on                                              tap.h
//
// Thread safety: every method may be called from any thread and, since the state is shared, from any process that has
// the channel. A process has at most one Channel object per channel (channels() in recovery.h).
//
// Deaths: a message is in the channel from the store of `tail` on and survives its sender. A receiver killed between
// `head` and its caller takes at most that message with it (with take() not even that one).
#pragma once

#include "channel/deliveries.h"
#include "channel/sending.h"
#include "channel/tap.h"
#include "channel/tasks.h"

namespace shmtree::channel {

struct ChannelOptions {
  std::uint64_t capacity = 8;   // messages put and not yet received; 0 is unlimited
  std::uint64_t max_bytes = 0;  // bytes queued; 0 is no limit but the arena's
  Ending ending = Ending::kRaise;
  bool allow_pickle = true;
  std::uint64_t max_unsettled = 0;  // messages taken and not settled, in all processes; 0 is no limit
  std::uint64_t max_attempts = 0;   // to have a message taken and acknowledged, then it is rejected; 0 is no limit
  bool keep_open = false;           // receivers wait for senders to come when none is left
  bool drop_oldest = false;         // a put that finds no room drops the oldest messages instead of waiting
  bool portable = false;            // nothing may be put that means something on this machine only
  bool is_named = false;            // other processes may open it by a name
  bool is_pipe = false;             // whoever makes it takes part in both ends as long as it has them
};

struct ChannelStats {
  std::uint64_t put, received, queued, queued_bytes, taken, returned, rejected, unfinished, capacity, max_bytes,
      max_unsettled, max_attempts, senders, receivers, senders_counting, receivers_counting, senders_on_their_way,
      receivers_on_their_way, dropped;
  std::vector<int> senders_unused, receivers_unused;  // the processes that count, and have not used their end
};

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  static Result<std::shared_ptr<Channel>> create(std::shared_ptr<Arena> arena, const ChannelOptions& options);
  // The channel that a handle names, which may be gone (Code::kNotFound) or not one (Code::kIncompatible).
  static Result<std::shared_ptr<Channel>> open(std::shared_ptr<Arena> arena, BlockRef block, const WaitContext& wait);
  ~Channel();

  const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }
  BlockRef block() const noexcept { return lease_.ref(); }
  std::uint64_t capacity() const noexcept { return parts_.control.shared.capacity; }
  std::uint64_t inline_bytes() const noexcept { return parts_.control.inline_bytes(); }
  bool allows_pickle() const noexcept { return parts_.control.shared.allow_pickle != 0; }
  bool is_portable() const noexcept { return parts_.control.is_portable(); }
  // Whether no message was ever put that is not portable.
  bool was_always_portable() const noexcept { return parts_.control.was_always_portable(); }
  // Whether somebody waits for messages, or watches a descriptor for them. May be true for a while longer.
  bool is_awaited() const noexcept { return parts_.watchers.is_awaited(); }
  // For those who look again and again instead: somebody found no message. When that was last said, by the monotonic
  // clock; 0: never.
  void note_asked() noexcept { platform::store_relaxed(parts_.control.shared.asked_ns, platform::monotonic_ns()); }
  std::int64_t asked_ns() const noexcept { return platform::load_relaxed(parts_.control.shared.asked_ns); }
  // From now on; what is there, or is being put, may be otherwise yet.
  void require_portable() noexcept;
  // From now on other processes may open it at any time, as by the text of a handle.
  void note_named() noexcept;
  // How many messages puts have dropped.
  std::uint64_t dropped() const noexcept { return platform::load_acquire(parts_.control.shared.dropped); }
  // kInvalid, with the values of both, unless it was made with these.
  Status check_options(const ChannelOptions& options) const;
  Ending ending() const noexcept { return parts_.control.ending(); }

  Ends& ends() noexcept { return parts_.ends; }
  Watchers& watchers() noexcept { return parts_.watchers; }
  Returns& returns() noexcept { return parts_.returns; }
  Membership& membership() noexcept { return parts_.membership; }
  Acks& acks() noexcept { return parts_.acks; }
  Sending& sending() noexcept { return sending_; }
  Receiving& receiving() noexcept { return receiving_; }
  Tasks& tasks() noexcept { return tasks_; }

  Result<Delivery> take(const WaitContext& wait) { return deliveries_.take(deliveries(), wait); }
  Result<std::vector<Delivery>> rejected(const WaitContext& wait) { return deliveries_.rejected(deliveries(), wait); }
  Result<std::vector<Delivery>> inherited(const WaitContext& wait) { return deliveries_.inherited(deliveries(), wait); }
  Status leave_to_heir() { return deliveries_.leave_to_heir(); }
  Status become_heir() { return deliveries_.become_heir(); }
  // Tickets that were taken, or given back, and not settled, in any order. May throw std::bad_alloc.
  std::vector<std::uint64_t> unsettled() const { return parts_.records.unsettled_tickets(); }
  // Looks on from now on, as nobody else does at the time.
  Result<std::shared_ptr<Tap>> tap(Tap::Wants wants, const WaitContext& wait) {
    return Tap::open(parts_, shared_from_this(), wants, wait);
  }
  std::uint64_t size() const noexcept { return parts_.watchers.size(); }
  bool ready() const noexcept { return parts_.watchers.ready(); }
  ChannelStats stats();  // may throw std::bad_alloc
  // Puts of this process are counted from now on; how many were, by whomever (RingTail::count_puts).
  void count_puts() noexcept { parts_.tail.count_puts(); }
  std::uint64_t counted() const noexcept { return RingTail::counted(parts_.control.shared); }
  // How many messages went through that end so far.
  std::uint64_t passed(End end) const noexcept {
    const ChannelHeader& shared = parts_.control.shared;
    return platform::load_relaxed(end == End::kSending ? shared.tail : shared.head);
  }

  // Ends this process's part in all of its channels: it is about to exit normally.
  static void leave_all() noexcept;

 private:
  Channel(std::shared_ptr<Arena> arena, Lease lease, std::uint64_t slot_bytes);
  std::shared_ptr<Deliveries> deliveries() { return {shared_from_this(), &deliveries_}; }

  const std::shared_ptr<Arena> arena_;
  Lease lease_;
  Parts parts_;
  Receiving receiving_{parts_};
  Sending sending_{parts_, receiving_};
  Deliveries deliveries_{parts_, receiving_};
  Tasks tasks_{parts_, receiving_};
};

}  // namespace shmtree::channel
