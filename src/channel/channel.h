// A channel: messages from any number of senders to any number of receivers, in the order of each sender, each
// delivered once. Moves inline bytes and block numbers; what is in them is not its business.
//
// Thread safety: every method may be called from any thread and, since the state is shared, from any process that has
// the channel. A process has at most one Channel object per channel; `Membership` counts its ends.
//
// Deaths: a message is in the channel from the store of `tail` on and survives its sender. A receiver killed between
// `head` and its caller takes at most that message with it (with take() not even that one).
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "channel/layout.h"
#include "channel/message.h"
#include "channel/spinner.h"
#include "memory/arena.h"
#include "memory/event.h"
#include "platform/atomics.h"

namespace shmtree::channel {

enum class End : std::uint32_t { kSending = 0, kReceiving = 1 };

struct ChannelOptions {
  std::uint64_t capacity = 8;   // messages put and not yet received; 0 is unlimited
  std::uint64_t max_bytes = 0;  // bytes queued; 0 is no limit but the arena's
  Ending ending = Ending::kRaise;
  bool allow_pickle = true;
  std::uint64_t max_unsettled = 0;  // messages taken and not settled, in all processes; 0 is no limit
  std::uint64_t max_attempts = 0;   // to have a message taken and acknowledged, then it is rejected; 0 is no limit
};

struct ChannelStats {
  std::uint64_t put, received, queued, queued_bytes, taken, returned, rejected, unfinished, capacity, max_bytes,
      max_unsettled, max_attempts, senders, receivers, senders_on_their_way, receivers_on_their_way;
};

// Ends that were given away and not yet claimed.
struct OnTheirWay {
  std::uint64_t count;
  int pid;              // of the process that gave the oldest; 0 when it has ended
  std::int64_t age_ns;  // of the oldest
};

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  static Result<std::shared_ptr<Channel>> create(std::shared_ptr<Arena> arena, const ChannelOptions& options);
  // The channel that a handle names, which may be gone (Code::kNotFound) or not one (Code::kIncompatible).
  static Result<std::shared_ptr<Channel>> open(std::shared_ptr<Arena> arena, BlockRef block, const WaitContext& wait);
  ~Channel();

  const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }
  BlockRef block() const noexcept { return lease_.ref(); }
  std::uint64_t capacity() const noexcept { return header().capacity; }
  // The longest frame that needs no block.
  std::uint64_t inline_bytes() const noexcept { return channel::inline_bytes(slot_bytes_); }
  bool allows_pickle() const noexcept { return header().allow_pickle != 0; }
  Ending ending() const noexcept { return static_cast<Ending>(header().ending); }

  // --- sending (send.cpp)
  // ---------------------------------------------------------------------------------------------

  // Waits until a message of `bytes` could be put now; it may be gone again by the time of put(). Same errors as put().
  Status wait_for_room(std::uint64_t bytes, const WaitContext& wait);
  // The ticket. kFull: no room in time; kMessageTooLarge: over max_bytes; kClosed, kPeerDied: full and nobody is left
  // to receive. `message` is consumed on success only.
  Result<std::uint64_t> put(Outgoing& message, const WaitContext& wait);
  // Puts all, in order, with as few publications as room allows. On an error `completed` says how many went.
  Status put_many(std::span<Outgoing> messages, const WaitContext& wait);
  bool has_room() noexcept;
  // Whether put() would put a small message, or fail for good, at once.
  bool can_put() noexcept { return has_room() || is_shut_down() || is_over(End::kReceiving); }

  // Tickets of this process that were not received yet, or taken and not acknowledged.
  std::uint64_t pending_acks(const WaitContext& wait);
  // kTimeout; kPeerDied or kClosed when nobody is left to receive. `ticket`: that message, else all of this process's.
  Status wait_for_ack(std::optional<std::uint64_t> ticket, const WaitContext& wait);

  // --- receiving (receive.cpp, delivery.cpp)
  // --------------------------------------------------------------------------

  // kEmpty: nothing in time; kClosed or kPeerDied: the stream has ended.
  Result<Incoming> get(const WaitContext& wait);
  // The same into `out`, which holds nothing: an inline frame is not moved once more.
  Status get(Incoming& out, const WaitContext& wait);
  // Gives back what get() received and this process had no memory to make anything of: the channel has it again, as one
  // that was returned. Should there be no memory for that either, the next call that receives here begins with it; it
  // is in this process then, and goes with it. (kept.cpp)
  void give_back(std::unique_ptr<Received> received) noexcept;
  // Waits as get() does, and while `max_unsettled` messages are taken.
  Result<Delivery> take(const WaitContext& wait);
  // What was given up after `max_attempts`, oldest first, and is with nobody: it is with this process until settled.
  // Acked it is gone, nacked or dropped it stays rejected. Looking does not count as a use of this end.
  Result<std::vector<Delivery>> rejected(const WaitContext& wait);
  std::uint64_t size() const noexcept;
  bool full() noexcept { return !has_room(); }
  // Whether get() would return, or report the end of the stream, at once.
  bool ready() noexcept { return can_receive() || is_shut_down() || is_over(End::kSending); }
  // Whether a get() of an empty channel would report the end of the stream, or deaths, instead of waiting.
  bool has_ended() noexcept { return is_over(End::kSending); }
  // A descriptor that is readable while ready() or, for the sending end, can_put(); also at once. Owned by the channel;
  // one per process and end. It is closed when the process leaves that end.
  Result<int> wake_fd(End end);

  // --- queues (queue.cpp)
  // ----------------------------------------------------------------------------------------------

  // One more of the messages put was dealt with; kInvalid when all of them were.
  Status task_done();
  // Waits until all were. kTimeout.
  Status join_tasks(const WaitContext& wait);
  std::uint64_t unfinished_tasks() const noexcept;
  // From the return on no put succeeds: kShutDown. Gets do while there is something left; with `discard` nothing is.
  Status shut_down(bool discard, const WaitContext& wait);
  bool is_shut_down() const noexcept { return platform::load_acquire(header().shutdown) != 0; }
  // Keeps everyone but this process from using that end until release(), or this process's death. Not recursive: a
  // second call waits like everybody's. kTimeout.
  Status reserve(End end, const WaitContext& wait);
  // Whether there was a reservation, whoever made it.
  bool release(End end) noexcept;

  // --- ends (ends.cpp)
  // ------------------------------------------------------------------------------------------------

  // This process has one more, or one fewer, object of that end.
  Status join(End end);
  void leave(End end) noexcept;
  // Whether it has any object of either end.
  bool is_used_here() noexcept;
  // Whether any process takes part in either.
  bool is_used() noexcept { return anyone_at(End::kSending) || anyone_at(End::kReceiving); }
  // (grants.cpp) An end on its way to another process, which takes part from now on until it is claimed: as long as
  // this process lives, and 60 s longer. kOutOfSharedMemory when there is no memory to note it.
  Result<std::uint64_t> grant(End end);
  // Before the join of whoever was given it: kClosed when it comes too late, so that the stream is over; kInvalid when
  // it is of the other end.
  Status check_grant(std::uint64_t grant, End end, int giver_pid);
  // After that join. Twice is harmless.
  void claim(std::uint64_t grant, End end) noexcept;
  OnTheirWay on_their_way(End end) noexcept;
  // Whether nobody takes part in that end but those whom it is on its way to.
  bool is_only_on_its_way(End end) noexcept { return !anyone_has(end) && is_on_its_way(end); }
  // A participant that does not run yet (reserve_slot) is given that end, and holds the channel.
  void join_for(Identity child, End end) noexcept;
  // Wakes whoever waits at either end, in every process, to look again.
  void wake_all() noexcept;

  ChannelStats stats() noexcept;

  // Ends this process's part in all of its channels: it is about to exit normally.
  static void leave_all() noexcept;

 private:
  friend class Delivery;
  friend struct Recovery;
  friend struct ForkMembership;

  Channel(std::shared_ptr<Arena> arena, Lease lease, std::uint64_t slot_bytes)
      : arena_(std::move(arena)), lease_(std::move(lease)), slot_bytes_(slot_bytes) {}
  ChannelHeader& header() const noexcept { return *reinterpret_cast<ChannelHeader*>(lease_.data()); }
  EndState& end(End which) const noexcept { return header().ends[static_cast<std::uint32_t>(which)]; }
  Segment segment(std::uint64_t packed) const noexcept;
  // The segment last asked for, since it seldom changes: one of these for each lock, used only under it.
  struct KnownSegment {
    std::uint64_t packed = 0;
    Segment segment{};
  };
  Segment segment(std::uint64_t packed, KnownSegment& known) const noexcept {
    if (packed != known.packed || packed == 0) [[unlikely]]
      known = {packed, segment(packed)};
    if (!known.segment) known.packed = 0;  // it may be mapped by the next time
    return known.segment;
  }

  // Sending, under the senders' lock.
  //   kYes           there is room, as far as `limit` lets it be seen (kRelieved: once that is raised again)
  //   kFull          no place       kFullOfBytes   over max_bytes       kNeedsSegment  no slot
  //   kFullOfMemory  more would take from the arena what others need
  enum class Room { kYes, kRelieved, kFull, kFullOfBytes, kFullOfMemory, kNeedsSegment, kDamaged, kShutDown };
  // Without the lock the last segment is looked at only by those who need it: it may become another block meanwhile.
  enum class Look { kLocked, kAtCounts, kAtSlots };
  // A message of `bytes`, of which `unallocated` have no block yet. `ring` is given the last segment.
  Room room_for(std::uint64_t bytes, std::uint64_t unallocated, Look look, Segment* ring = nullptr) noexcept;
  struct Blocked {
    std::uint64_t bytes, unallocated;
    bool may_grow;  // false: there was no memory for another segment
  };
  struct Put {
    std::size_t count;
    std::uint64_t first;  // ticket
    bool may_grow;
  };
  Result<Put> put_first(std::span<Outgoing> messages, const platform::WaitContext& wait);
  Status refuse_at_once(std::uint64_t bytes) const;
  Status check_outgoing(const Outgoing& message, Identity me) const;
  bool is_refused(const Outgoing& message) const noexcept;
  bool has_memory_for_ring(std::uint64_t slots) const noexcept;
  bool may_grow_ring(const Segment& last, std::uint64_t queued) noexcept;
  static void write_slot(Slot& slot, std::uint64_t ticket, const Outgoing& message, Identity me) noexcept;
  void link_segment(OwnedBlock segment, std::uint64_t tail) noexcept;
  Result<OwnedBlock> new_segment(std::uint64_t slots, const WaitContext& wait);
  Result<Put> put_some(std::span<Outgoing> messages, const WaitContext& wait);
  std::size_t write_some(const Segment& segment, std::span<Outgoing> messages, Identity me, bool watched) noexcept;
  Status wait_until_room(const Blocked& blocked, const WaitContext& wait);
  // What woke this call is of use to another: it does not put now.
  void leave_room_to_others() noexcept { memory::notify(header().space); }
  Error still_full() const;
  Error no_ring() const;
  void published(std::size_t count, bool watched) noexcept;

  // Receiving, under the receivers' lock.
  static constexpr std::size_t kMostAtOnce = 64;  // messages put, or looked at, under one lock
  struct Receipt {                                // what a look under the lock leaves to do without it
    BlockRef spent[4];
    std::size_t spent_count = 0;
    bool damaged = false;
    bool starved = false;      // the next message was left: this process has no memory, or addresses, for it
    std::uint64_t ticket = 0;  // of that message
    std::uint64_t wanted = 0;  // bytes that there are no addresses for; 0: memory was missing
    bool starve(std::uint64_t of, std::uint64_t bytes) noexcept {
      starved = true;
      ticket = of;
      wanted = bytes;
      return false;
    }
  };
  bool has_messages() const noexcept;
  bool can_receive() const noexcept { return (has_messages() && !is_reserved(End::kReceiving)) || kept_here() != 0; }
  enum class Access { kFree, kReserved, kShutDown };
  Access receiving_access() const noexcept;
  Slot* first_slot(Receipt& receipt) noexcept;
  bool receive_slot(const Slot& slot, Identity me, Incoming& out, Receipt& receipt) noexcept;
  Result<bool> get_now(Incoming& out, Identity me, const WaitContext& wait);
  void fetch_next(std::uint64_t bytes) const noexcept;
  bool receive_next(Incoming& out, Identity me, Receipt& receipt) noexcept;
  bool serve_returned(Identity me, Incoming& out, Receipt& receipt) noexcept;
  template <class Ready>
  Status wait_at(Event& event, End peers, const char* waited_for, const Ready& ready, const WaitContext& wait);
  Status wait_until_ready(const WaitContext& wait);
  void leave_messages_to_others() noexcept {
    if (has_messages()) memory::notify(header().items);
  }
  void received() noexcept;
  void settle_receipt(const Receipt& receipt) noexcept;
  template <class Visit>
  void for_each_record(Visit visit) const noexcept;
  void copy_slot(Slot& to, const Slot& from) const noexcept;
  void set_record(Record& record, std::uint64_t word) noexcept;
  void forget_returned() noexcept;
  void settled(RecordState became) noexcept;
  bool collect_rejected(std::vector<Delivery>& found, Identity me, Receipt& receipt) noexcept;
  Record* free_record() noexcept;
  Record* oldest_returned() noexcept;
  Error unreceived(const Receipt& receipt) const;
  enum class Took { kOne, kNone, kNeedsRecord, kLeft, kTooMany };
  std::uint64_t unsettled() const noexcept;
  bool has_too_many_taken() const noexcept;
  Status wait_until_settled(const WaitContext& wait);
  Took take_locked(Identity me, Delivery& delivery, Receipt& receipt) noexcept;
  bool others_may_return() noexcept;
  Status add_records(const WaitContext& wait);

  // What was given back and is in no record.
  std::uint64_t kept_here() const noexcept {
    const std::uint64_t count = kept_count_.load(std::memory_order_relaxed);
    return count == 0 || kept_by_.load(std::memory_order_relaxed) != arena_->current_identity() ? 0 : count;
  }
  std::optional<RecordState> write_returned(Record& record, const Incoming& message) noexcept;
  bool return_to_channel(Incoming& message) noexcept;
  void keep(std::unique_ptr<Received> received) noexcept;
  std::unique_ptr<Received> first_kept() noexcept;
  bool return_kept() noexcept;
  bool serve_kept(Incoming& out) noexcept;

  // Ends.
  void seat(End which, Identity who) noexcept;
  void depart(End which) noexcept;
  bool anyone_has(End which) noexcept;
  bool is_on_its_way(End which) noexcept;
  bool anyone_at(End which) noexcept { return anyone_has(which) || is_on_its_way(which); }
  Grant* free_grant() noexcept;
  Grant* find_grant(std::uint64_t state) noexcept;
  Status add_grants();
  bool is_over(End which) noexcept;
  Error end_error(End which);
  bool is_acked(std::uint64_t ticket) noexcept;
  void mark_used(End which, Identity me) noexcept;
  void note_sent(std::uint64_t first, std::uint64_t count) noexcept;
  bool all_acked(Identity me) noexcept;

  // Queues.
  bool is_reserved(End which) const noexcept {
    const Identity by = platform::load_relaxed(header().reserved[static_cast<std::uint32_t>(which)]);
    return by != memory::kNobody && by != arena_->current_identity();
  }
  std::uint64_t last_task() const noexcept;
  Status discard_queued(const WaitContext& wait);
  Error discarded(const WaitContext& wait);
  static Error shut_down_error();

  // Nothing is paid when nobody asked.
  void wake_watchers(End which) noexcept {
    if (platform::load_relaxed(header().watched[static_cast<std::uint32_t>(which)]) != 0) [[unlikely]]
      wake_watchers_of(*arena_, lease_.ref(), header(), which);
  }
  static void wake_watchers_of(Arena& arena, BlockRef channel, ChannelHeader& shared, End which) noexcept;
  void settle_wake_fd(End which) noexcept {
    if (watches_[static_cast<std::uint32_t>(which)].active.load(std::memory_order_acquire)) [[unlikely]]
      settle_active_fd(which);
  }
  void settle_active_fd(End which) noexcept;
  void unwatch(End which) noexcept;
  void send_announced_wakes() noexcept;
  void await_announced_wakes() noexcept;

  std::shared_ptr<Arena> arena_;
  Lease lease_;
  const std::uint64_t slot_bytes_;  // as it was checked

  platform::LeafMutex mutex_;  // all below
  std::uint32_t local_ends_[2]{};
  struct Range {
    std::uint64_t first, count;
  };
  std::deque<Range> sent_;      // tickets of this process, oldest first; those below head are dropped when looked at
  std::uint64_t sent_end_ = 0;  // past the last of them
  Identity sent_by_ = memory::kNobody;
  struct Watch {
    platform::UniqueFd fd;
    std::atomic<Identity> owner{memory::kNobody};
    std::atomic<bool> active{false};
  };
  Watch watches_[2];
  std::unique_ptr<Received> kept_;  // by ticket

  std::atomic<Identity> kept_by_{memory::kNobody};  // a forked child inherits what is its parent's
  std::atomic<std::uint64_t> kept_count_{0};
  std::atomic<bool> has_given_{false};       // this process has made a grant
  std::atomic<std::uint32_t> used_as_[2]{};  // identity that mark_used() has seen
  Spinner get_spinner_, put_spinner_;
  KnownSegment known_last_;   // under senders_lock
  KnownSegment known_first_;  // under receivers_lock
};

}  // namespace shmtree::channel
