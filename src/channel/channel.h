// A channel: messages from any number of senders to any number of receivers. Each message is delivered once, and the
// messages of one sender stay in order. A channel moves inline bytes and block numbers, and does not interpret them.
// This class is a facade of the following classes, each of which uses only classes above it:
//
//   Control     control block and arena                                  control.h
//   TapNotes    notes that puts leave for a tap                          tap_notes.h
//   Unreturned  messages that this process could not return              message.h
//   WakeHub     one descriptor that wakes a process for many ends        wake_hub.h
//   RingTail    end of the ring where messages are put                   ring.h
//   RingHead    end of the ring where messages are received              ring.h
//   Ends        attached processes, and the end of the stream            ends.h
//   Records     delivery records of unacked messages                     records.h
//   Front       decides which message is received next                   records.h
//   PeerWait    blocks while a process is attached to the other end      peer_wait.h
//   Watchers    waiting threads and processes, and their wake-up         watchers.h
//   Returns     returns received messages to the channel                 membership.h
//   Membership  objects of the ends in this process                      membership.h
//   Acks        acknowledgement of messages that this process has put    acks.h
//   Tasks       queues: task counts, shutdown, reservation               tasks.h
//   Tap         observes messages without receiving them                 tap.h
//   Receiving   get                                                      receiving.h
//   Deliveries  take, and rejected messages                              receiving.h
//   Sending     put                                                      sending.h
//
// Thread safety: any thread may call every method. Since the state is shared, so may any process that has opened the
// channel. A process has at most one Channel object per channel (channels()).
//
// Deaths: the store of `tail` puts a message into the channel, and it survives its sender from then on. A receiver that
// dies between the store of `head` and the return to its caller loses at most that one message; with take() it loses
// none.
#pragma once

#include "channel/acks.h"
#include "channel/receiving.h"
#include "channel/sending.h"
#include "channel/tap.h"
#include "channel/tasks.h"
#include "platform/weak_registry.h"

namespace shmtree::channel {

struct ChannelOptions {
  std::uint64_t capacity = 8;   // In messages that were put and not yet received; 0: no limit.
  std::uint64_t max_bytes = 0;  // Maximum bytes of queued messages; 0: no limit except the arena's.
  Ending ending = Ending::kRaise;
  bool allow_pickle = true;
  std::uint64_t max_unacked = 0;   // Maximum number of unacked messages, over all processes; 0: no limit.
  std::uint64_t max_attempts = 0;  // Takes of a message before it is rejected; 0: no limit.
  KeepOpen keep_open = KeepOpen::kNo;
  bool drop_oldest = false;     // A put that finds no space drops the oldest messages instead of waiting.
  bool portable = false;        // No message may contain references that are valid on this machine only.
  bool is_named = false;        // Other processes may open it by name.
  bool is_pipe = false;         // Its creator stays attached to both ends as long as it owns them.
  bool takes_requests = false;  // Its messages are the requests of a Service.
};

struct ChannelStats {
  std::uint64_t put, received, queued, queued_bytes, taken, returned, dead_letters, unfinished, capacity, max_bytes,
      max_unacked, max_attempts, senders, receivers, senders_attached, receivers_attached, senders_in_transit,
      receivers_in_transit, dropped;
  std::vector<int> senders_never_used, receivers_never_used;  // pids of attached processes that have not used their end
};

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  // Longest wait of create() by default. It waits only for locks, and for memory that other processes are about to
  // free. That takes longer only if a word of the arena is damaged, or if the lock's owner is stopped.
  static constexpr std::int64_t kMaxCreateNs = 10'000'000'000;
  static Result<std::shared_ptr<Channel>> create(std::shared_ptr<Arena> arena, const ChannelOptions& options,
                                                 const WaitContext& wait = {
                                                     platform::Deadline::after_ns(kMaxCreateNs)});
  // Opens the channel that a handle names. kNotFound if it no longer exists, kIncompatible if the block is not a
  // channel.
  static Result<std::shared_ptr<Channel>> open(std::shared_ptr<Arena> arena, BlockRef block, const WaitContext& wait);
  ~Channel();

  const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }
  BlockRef block() const noexcept { return lease_.ref(); }
  std::uint64_t capacity() const noexcept { return control_.shared.capacity; }
  std::uint64_t inline_bytes() const noexcept { return control_.inline_bytes(); }
  bool allows_pickle() const noexcept { return control_.shared.allow_pickle != 0; }
  bool is_portable() const noexcept { return control_.is_portable(); }
  // True if every message that was ever put is portable.
  bool was_always_portable() const noexcept { return control_.was_always_portable(); }
  // True if a process waits for messages, or watches a descriptor for them. May stay true for a while after that.
  bool is_awaited() const noexcept { return watchers_.is_awaited(); }
  // For receivers that poll: note_asked() records the time at which one found no message, and asked_ns() returns the
  // last such time, by the monotonic clock; 0: never.
  void note_asked() noexcept { platform::store_relaxed(control_.shared.asked_ns, platform::monotonic_ns()); }
  std::int64_t asked_ns() const noexcept { return platform::load_relaxed(control_.shared.asked_ns); }
  // Requires messages to be portable from now on. Messages that are queued, or are being put, may not be.
  void require_portable() noexcept;
  // Records that other processes may open the channel at any time from now on, for example by the text of a handle.
  void note_named() noexcept;
  // Returns the number of messages that puts have dropped.
  std::uint64_t dropped() const noexcept { return platform::load_acquire(control_.shared.dropped); }
  // Returns kInvalid, with both values, if the channel was created with other options.
  Status check_options(const ChannelOptions& options) const;
  Ending ending() const noexcept { return control_.ending(); }
  bool is_queue() const noexcept { return control_.is_queue(); }
  // True for the channel of a Service. Each language refuses puts into it, except those of a client.
  bool takes_requests() const noexcept { return control_.shared.requests != 0; }
  bool waits_for_receivers() const noexcept { return control_.keeps_open(End::kReceiving); }

  Ends& ends() noexcept { return ends_; }
  Watchers& watchers() noexcept { return watchers_; }
  Returns& returns() noexcept { return returns_; }
  Membership& membership() noexcept { return membership_; }
  Acks& acks() noexcept { return acks_; }
  Sending& sending() noexcept { return sending_; }
  Receiving& receiving() noexcept { return receiving_; }
  Tasks& tasks() noexcept { return tasks_; }

  Result<Delivery> take(const WaitContext& wait) { return deliveries_.take(deliveries(), wait); }
  Result<std::vector<Delivery>> dead_letters(const WaitContext& wait) {
    return deliveries_.dead_letters(deliveries(), wait);
  }
  Result<std::vector<Delivery>> inherited(const WaitContext& wait) { return deliveries_.inherited(deliveries(), wait); }
  Status leave_to_successor() { return deliveries_.leave_to_successor(); }
  Status become_successor() { return deliveries_.become_successor(); }
  // Returns the tickets of messages that were taken or returned, and not settled, in any order. May throw
  // std::bad_alloc.
  std::vector<std::uint64_t> unacked() const { return records_.unacked_tickets(); }
  // Opens the channel's only tap, which sees messages that are put from now on.
  Result<std::shared_ptr<Tap>> tap(Tap::Wants wants, const WaitContext& wait) {
    return Tap::open(control_, ends_, shared_from_this(), wants, wait);
  }
  std::uint64_t size() const noexcept { return watchers_.size(); }
  bool ready() const noexcept { return watchers_.ready(); }
  ChannelStats stats();  // may throw std::bad_alloc
  // Starts to count puts of this process; counted() is the number over all processes that count (RingTail::count_puts).
  void count_puts() noexcept { tail_.count_puts(); }
  std::uint64_t counted() const noexcept { return RingTail::counted(control_.shared); }
  // Returns the number of messages that have passed through that end so far.
  std::uint64_t passed(End end) const noexcept {
    const ChannelHeader& shared = control_.shared;
    return platform::load_relaxed(end == End::kSending ? shared.tail : shared.head);
  }

  // Detaches this process from all of its channels, when it is about to exit normally.
  static void leave_all() noexcept;

 private:
  Channel(std::shared_ptr<Arena> arena, Lease lease, std::uint64_t slot_bytes);
  std::shared_ptr<Deliveries> deliveries() { return {shared_from_this(), &deliveries_}; }

  const std::shared_ptr<Arena> arena_;
  Lease lease_;
  const Control control_;
  RingTail tail_{control_};
  RingHead head_{control_, arena_};
  Records records_{control_};
  Front front_{control_, head_, records_};
  Unreturned unreturned_{*arena_};
  Ends ends_{control_};
  Watchers watchers_{control_, tail_, head_, unreturned_, ends_};
  Returns returns_{control_, records_, unreturned_, watchers_};
  Membership membership_{control_, ends_, watchers_, returns_};
  Acks acks_{control_, tail_, records_, ends_};
  Receiving receiving_{control_, head_, front_, ends_, watchers_, returns_, membership_};
  Sending sending_{control_, tail_, front_, ends_, watchers_, membership_};
  Deliveries deliveries_{control_, head_, records_, front_, ends_, watchers_, returns_, membership_, receiving_};
  Tasks tasks_{control_, records_, front_, ends_, watchers_};
};

// The channels of this process.
platform::WeakRegistry<Channel>& channels() noexcept;

}  // namespace shmtree::channel
