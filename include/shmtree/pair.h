/// @file
/// Channels between processes, and the arenas that they live in.
///
///     auto [sender, receiver] = shmtree::make_pair({.capacity = 8});
///     sender.put(shmtree::Dict{{"obs", obs}, {"reward", 1.0}}, 3s).value();
///     shmtree::Item item = receiver.get(3s).value();
///
/// Ownership: Sender, Receiver and Arena are handles; copies name the same thing and are cheap. A process takes part in
/// an end from the moment it has it until its last handle of that end is closed or gone, it exits, or it uses the other
/// end without ever having used this one. Forked children inherit both. Timeouts: std::nullopt waits for ever, zero
/// does not wait; never more than 50 ms late. Waits also end when their end is closed, by any thread (kClosed), and
/// when the stop_token of the call is stopped (kInterrupted); waits for memory notice that within 250 ms. If the token
/// was stopped before the call, the call does nothing, even if it would not block. Errors: full, empty, timed out,
/// closed, the death of peers and want of memory are results (result.h), not exceptions. Thread safety: every call may
/// be made from any thread, on any copy of a handle. A moved-from end is closed. Signal handlers: closed() is
/// async-signal-safe. No other call is, since they take locks and allocate memory: let the handler set a flag or write
/// to a pipe, and call from a thread.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <ranges>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "shmtree/arena.h"
#include "shmtree/containers.h"
#include "shmtree/flat.h"
#include "shmtree/frame.h"
#include "shmtree/item.h"
#include "shmtree/result.h"
#include "shmtree/taken.h"
#include "shmtree/value.h"

namespace shmtree {

namespace detail {
struct ForkAccess;
}

namespace api {
std::shared_ptr<ChannelState> closed_end() noexcept;

/// What the handles of an end have in common. One that was moved from has a closed end.
class EndPointer {
 public:
  explicit EndPointer(std::shared_ptr<ChannelState> state) noexcept : state_(std::move(state)) {}
  EndPointer(const EndPointer&) noexcept = default;
  EndPointer(EndPointer&& other) noexcept : state_(std::exchange(other.state_, closed_end())) {}
  EndPointer& operator=(const EndPointer&) noexcept = default;
  EndPointer& operator=(EndPointer&& other) noexcept {
    if (this != &other) state_ = std::exchange(other.state_, closed_end());
    return *this;
  }
  ChannelState& operator*() const noexcept { return *state_; }
  ChannelState* operator->() const noexcept { return state_.get(); }

 private:
  std::shared_ptr<ChannelState> state_;
};
}  // namespace api

/// Whether who finds nobody left at the other end is told that one of them was killed (kPeerDied), or waits for others;
/// kEach tells of each that was killed, in the next call that finds it, also while others are left.
enum class OnPeerDeath { kRaise, kWait, kEach };

/// What a put does that finds no room: it waits, or it drops the oldest messages that nobody has received.
enum class Behind { kBlock, kDropOldest };

/// What make_pair() makes.
struct PairOptions {
  std::uint64_t capacity = 8;  ///< messages that can be received, those given back included; 0 is unlimited
  /// Bytes of them; 0 is no limit but the arena's. What a message passes by reference counts with the whole of the
  /// memory that it lies in, in each message that refers to it.
  std::uint64_t max_bytes = 0;
  std::string name{};  ///< under which other processes of this user open it; empty for none. It gets an arena of
                       ///< its own unless one is given
  std::optional<Arena> arena{};  ///< where messages lie; without one that of the process, or of the name
  OnPeerDeath on_peer_death = OnPeerDeath::kRaise;  ///< whether kills are told
  std::uint64_t max_unsettled = 0;  ///< messages taken and not settled, by all takers together; 0 is unlimited
  std::uint64_t max_attempts = 0;   ///< times that a message is taken before it is given up; 0 is no limit
  /// Whether Python programs that have the ends, and agree, may send pickles and load them, which runs any code of
  /// their sender's; without a value those of a channel without a name may.
  std::optional<bool> allow_pickle{};
  Behind behind = Behind::kBlock;  ///< what a put does that finds no room
  bool keep_open = false;  ///< the stream does not end where nobody is left who sends: receivers wait for others
  bool portable = false;   ///< a put of what means something on this machine only is kInvalid: ends, shared arrays
  bool exist_ok = false;   ///< opens the channel that has `name`; kInvalid if its options differ
};

/// Of a channel, at some moment.
struct ChannelStats {
  std::uint64_t put = 0;                     ///< messages in all
  std::uint64_t received = 0;                ///< messages in all
  std::uint64_t queued = 0;                  ///< messages to be received
  std::uint64_t queued_bytes = 0;            ///< bytes of these, as max_bytes counts them
  std::uint64_t taken = 0;                   ///< and not acknowledged
  std::uint64_t senders = 0;                 ///< processes that have the end
  std::uint64_t receivers = 0;               ///< processes that have the end
  std::uint64_t senders_counting = 0;        ///< of those: that take part in it. One that only receives does not
  std::uint64_t receivers_counting = 0;      ///< the same; one that only sends does not
  std::uint64_t senders_on_their_way = 0;    ///< given away by handle(), or pickled, and not yet opened
  std::uint64_t receivers_on_their_way = 0;  ///< the same
  std::uint64_t dropped = 0;                 ///< messages that puts dropped, in all
  /// The processes that count and have never used their end, such as a launcher that forgot to close it: the stream
  /// does not end while there are any. A receiver that waits for nothing else waits in vain.
  std::vector<int> senders_unused{};
  std::vector<int> receivers_unused{};  ///< the same
};

/// The end of a channel that messages are put into.
class Sender {
 public:
  /// Puts a message and returns its ticket. The value, and the memory that its arrays refer to, may be changed as soon
  /// as this returns, arrays from new_array() excepted.
  ///   kFull: no room in time.  kMessageTooLarge: over a budget, at once.  kOutOfSharedMemory: only views hold the
  ///   memory. kClosed: closed here, or full with no receivers left; kPeerDied the same if one was killed.
  Result<std::uint64_t> put(const Value& value, Timeout timeout = std::nullopt) const;
  /// The same, ended by `stop` too (kInterrupted).
  Result<std::uint64_t> put(const Value& value, Timeout timeout, const std::stop_token& stop) const;
  /// Puts all of them, in order; small ones go together, which costs less than each alone. `timeout` is for all. After
  /// an error `completed` says how many went; the others did not. Errors as of put().
  Status put_many(std::span<const Value> values, Timeout timeout = std::nullopt,
                  const std::stop_token& stop = {}) const;
  /// The same of a range of anything that becomes a Value; of one that can be gone over once only when it gives its
  /// elements away, since what it refers to would be gone when they are put.
  template <detail::RangeOfValues Range>
  Status put_many(Range&& range, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    return or_out_of_memory([&] {
      const std::vector<Value> values = detail::values_of(std::forward<Range>(range));
      return put_many(std::span<const Value>(values), timeout, stop);
    });
  }
  /// Sends a received Item on: `put(std::move(item))`. Its arrays are not copied where they lie in this channel's
  /// arena, when it is the last Item of its message (views of xtensor count): the receiver gets them at the same place,
  /// and other views of them here are not to be used any more. As a part of a Value the same: `Dict{{"obs",
  /// std::move(item)}}`. Otherwise a copy is put. The item is gone when it was put, and is there still after an error;
  /// put(item) leaves it. kPickleRefused, with the way to it: the item has something in it that Python pickled, and
  /// this channel takes no pickles.
  template <std::same_as<Item> Moved>
  Result<std::uint64_t> put(Moved&& item, Timeout timeout = std::nullopt) const {
    return put_moved(item, timeout);
  }
  /// The same, ended by `stop` too (kInterrupted).
  template <std::same_as<Item> Moved>
  Result<std::uint64_t> put(Moved&& item, Timeout timeout, const std::stop_token& stop) const {
    return put_moved(item, timeout, stop);
  }
  /// Sends received bytes on: `put(std::move(flat))`. They arrive as an array of uint8, which get_bytes() and
  /// get_struct() receive like any bytes. They are not copied where they lie in this channel's arena and this is the
  /// last FlatItem of the message, unless it was taken and is not acknowledged. The item is gone when it was put, and
  /// is there still after an error; kInvalid for one that was moved from. To send a copy, or `bytes` of Python:
  /// put_bytes(flat.bytes()).
  template <std::same_as<FlatItem> Moved>
  Result<std::uint64_t> put(Moved&& item, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    auto ticket = put_flat(item, timeout, stop);
    if (ticket) item = FlatItem();
    return ticket;
  }
  /// Puts a Cap'n Proto message with root type T: `put<Pose>(builder)`. Include capnp.h; its capnp_ref() puts the
  /// message into a Value. You may change the builder as soon as this returns, unless it is an ArenaMessageBuilder.
  template <class T, detail::CapnpBuilder<T> Builder>
  Result<std::uint64_t> put(Builder& builder, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    return detail::put_capnp<T>(builder, [&](const Value& value) { return put(value, timeout, stop); });
  }
  // --- messages without a tree around them (flat.h)

  /// Puts a copy of the bytes, which Python receives as `bytes`. (A span that is put as a Value is an array.) Errors as
  /// of put(); so it is with the others, and with `stop`.
  Result<std::uint64_t> put_bytes(std::span<const std::byte> bytes, Timeout timeout = std::nullopt,
                                  const std::stop_token& stop = {}) const;
  /// The bytes of a struct.
  template <FlatStruct T>
  Result<std::uint64_t> put_struct(const T& value, Timeout timeout = std::nullopt,
                                   const std::stop_token& stop = {}) const {
    return put_bytes(std::as_bytes(std::span<const T, 1>(&value, 1)), timeout, stop);
  }
  /// A struct in shared memory, as T() makes it, to be written there and then put. Waits as new_array() does.
  template <FlatStruct T>
  requires std::is_default_constructible_v<T> Result<Loaned<T>> loan(Timeout timeout = std::nullopt,
                                                                     const std::stop_token& stop = {})
  const { return detail::LoanAccess::make<T>(lend(sizeof(T), timeout, stop)); }
  /// The same of `count` bytes, at least one, which are not initialised.
  Result<LoanedBytes> loan_bytes(std::size_t count, Timeout timeout = std::nullopt,
                                 const std::stop_token& stop = {}) const {
    return detail::LoanAccess::make_bytes(lend(count, timeout, stop), count);
  }
  /// Puts what was lent, without a copy: `put(std::move(loan))`. It is empty afterwards, and untouched after an error.
  /// kInvalid: it is empty, is of another arena, or is put by a forked child.
  template <class T>
  Result<std::uint64_t> put(Loaned<T>&& loan, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    return detail::LoanAccess::put(loan, [&](detail::LoanedBlock* block) { return put_lent(block, timeout, stop); });
  }
  /// Puts the value in a frame, or in bytes that begin with one (frame.h), without making it. kCorrupt, kIncompatible:
  /// what is wrong with them. kInvalid: a handle is in it, or it is not portable and the channel is. Else as put().
  Result<std::uint64_t> put_frame(const FrameSource& frame, Timeout timeout = std::nullopt,
                                  const std::stop_token& stop = {}) const;

  /// Whether a small message would be taken at once.
  bool has_space() const;

  /// Until the message with this ticket, or all that this process put, were received (and acknowledged, where taken).
  /// kTimeout; kPeerDied or kClosed when no receiver is left that could.
  Status wait_for_ack(std::uint64_t ticket, Timeout timeout = std::nullopt) const;
  /// The same, ended by `stop` too (kInterrupted).
  Status wait_for_ack(std::uint64_t ticket, Timeout timeout, const std::stop_token& stop) const;
  /// The same for all that this process put.
  Status wait_for_all_ack(Timeout timeout = std::nullopt) const;
  /// The same, ended by `stop` too (kInterrupted).
  Status wait_for_all_ack(Timeout timeout, const std::stop_token& stop) const;
  /// Messages that this process put and that were not yet received, or acknowledged; 0 when it has no end any more.
  std::uint64_t pending_acks() const;
  /// Messages that puts dropped, those of all senders of the channel (Behind::kDropOldest); 0 when this process has no
  /// end any more.
  std::uint64_t dropped() const;

  /// As Arena::new_array, in this channel's arena.
  Result<ArrayRef> new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout = std::nullopt) const;
  /// The same, ended by `stop` too (kInterrupted).
  Result<ArrayRef> new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout,
                             const std::stop_token& stop) const;

  /// A text that lets a process of the same user open this end. The end counts as taken part in from this call on until
  /// it is opened, for as long as this process lives and 60 s longer: open() gives kClosed when it comes so late that
  /// the stream is over. kOutOfSharedMemory when there is no memory to note that it is on its way.
  Result<std::string> handle() const;
  /// The end that such a text is of. kInvalid for a text that is none, or is that of a receiver, or of a queue, which
  /// Queue::open() opens (then the ends of it are sender() and receiver()); kClosed as above;
  /// kNotFound, kUnavailable and kIncompatible when the arena cannot be had.
  static Result<Sender> open(const std::string& handle);

  /// kClosed.
  Result<ChannelStats> stats() const;
  /// Also of all copies of this handle. Lets go of the channel as soon as no other thread is in a call of it; with the
  /// process's last end of the channel its name, memory and descriptors go, but for what items and arrays still need.
  /// Calls give kClosed from then on; waits for acks do as soon as the process has no other end of the channel. A put()
  /// that is under way in another thread is received before the end of the stream, or gives kClosed. Does not wait.
  void close();
  /// Whether close() was called, or this was moved from.
  bool closed() const noexcept;

 private:
  friend class Queue;
  friend struct api::ChannelState;
  friend struct detail::ForkAccess;
  explicit Sender(std::shared_ptr<api::ChannelState> state) noexcept : state_(std::move(state)) {}
  Result<std::uint64_t> put_moved(Item& item, Timeout timeout) const;
  Result<std::uint64_t> put_moved(Item& item, Timeout timeout, const std::stop_token& stop) const;
  Result<detail::Lent> lend(std::size_t bytes, Timeout timeout, const std::stop_token& stop) const;
  Result<std::uint64_t> put_flat(const FlatItem& item, Timeout timeout, const std::stop_token& stop) const;
  Result<std::uint64_t> put_lent(detail::LoanedBlock* block, Timeout timeout, const std::stop_token& stop) const;
  template <class Put>
  Result<std::uint64_t> forward(Item& item, Put put) const;
  api::EndPointer state_;
};

namespace detail {

/// Of what is received until the end of a stream, by get() of an End.
template <class End>
class StreamIterator {
 public:
  using value_type = Item;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::input_iterator_tag;
  using pointer = const Item*;
  using reference = const Item&;

  explicit StreamIterator(const End& end) : end_(end) { ++*this; }
  const Item& operator*() const noexcept { return *item_; }
  const Item* operator->() const noexcept { return &*item_; }
  StreamIterator& operator++() {
    item_.reset();
    Result<Item> next = end_.get();
    if (next) {
      item_ = std::move(*next);
    } else if (next.code() != Code::kClosed && next.code() != Code::kShutDown) {
      throw BadResult(std::move(next).error());
    }
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const noexcept { return !item_; }

 private:
  End end_;
  std::optional<Item> item_{};
};

}  // namespace detail

/// The end of a channel that messages are received from.
class Receiver {
 public:
  /// The next message. Arrays are views of shared memory, which the Item holds.
  ///   kEmpty: nothing in time.  kClosed: closed here, or every sender has closed or exited and all is delivered;
  ///   kPeerDied instead, once, if one of them was killed.  kCorrupt: that message was damaged; it is consumed.
  ///   kOutOfSharedMemory: this process has no memory, or addresses, for the message; it stays in the channel, or is
  ///   there again as one that was returned.
  ///   kPickleRefused never: what Python pickled arrives as an Item of kind kPickle.
  Result<Item> get(Timeout timeout = std::nullopt) const;
  /// The same, ended by `stop` too (kInterrupted).
  Result<Item> get(Timeout timeout, const std::stop_token& stop) const;
  /// Waits for one, then takes what is there: 1 to `most` items. An error behind the first of them comes with the next
  /// call.
  Result<std::vector<Item>> get_many(std::size_t most, Timeout timeout = std::nullopt) const;
  /// The same, ended by `stop` too (kInterrupted).
  Result<std::vector<Item>> get_many(std::size_t most, Timeout timeout, const std::stop_token& stop) const;
  /// The next message as bytes (flat.h): of C++'s put_bytes(), put_struct() and loans, and bytes, bytearrays and arrays
  /// of uint8 that are put otherwise. Errors as of get(). kInvalid: the message is none of these, or (of get_struct)
  /// has another size than the struct; it is consumed, and the error has its ticket.
  Result<FlatItem> get_bytes(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// The same as a struct, copied out.
  template <FlatStruct T>
  Result<T> get_struct(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    T value;
    Status got = get_into(std::as_writable_bytes(std::span<T, 1>(&value, 1)), timeout, stop);
    if (!got) return std::move(got).error();
    return value;
  }
  /// As get(); waits also while `max_unsettled` messages are taken and not settled.
  Result<TakenItem> take(Timeout timeout = std::nullopt) const;
  /// The same, ended by `stop` too (kInterrupted).
  Result<TakenItem> take(Timeout timeout, const std::stop_token& stop) const;
  /// The same of a message as get_bytes() receives it. kInvalid: it is made of no bytes, and is consumed.
  Result<TakenBytes> take_bytes(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// The same of 1 to `most` messages as frames (frame.h): waits for one, then takes what is there, without decoding.
  Result<std::vector<TakenFrame>> take_frames(std::size_t most, Timeout timeout = std::nullopt,
                                              const std::stop_token& stop = {}) const;
  /// The messages that were given up, the oldest first, except those that another process is looking at. A message is
  /// given up after `max_attempts`, or after eight receivers in a row had no memory to build it. Acknowledge one to
  /// drop it. Senders do not wait for messages that were given up. A call of rejected() does not count as a use of this
  /// end. kCorrupt: one was damaged; it is consumed. kOutOfSharedMemory: for one of them there is no memory; all stay.
  Result<std::vector<TakenItem>> rejected() const;

  /// All messages to the end of the stream: `for (const Item& item : receiver)`. Waits for each; the one before is let
  /// go of first, unless it was copied. Ends when get() would say kClosed, also because this end was closed. Throws
  /// BadResult for every other error; begin() goes on after it. One at a time.
  using Iterator = detail::StreamIterator<Receiver>;
  /// The next message; waits for it.
  Iterator begin() const { return Iterator(*this); }
  /// The end of these.
  std::default_sentinel_t end() const noexcept { return {}; }

  /// Messages to be received, those given back included; 0 when this process has no end any more.
  std::uint64_t size() const;
  /// Whether there are none.
  bool empty() const { return size() == 0; }
  /// Readable while a call of get() would return at once; owned by the channel, and closed with the process's last
  /// receiver of it. The death of the last process that sends makes it readable too, if that had the end when this was
  /// called, or when something was last received. kOs: the system refuses pidfd_open, or both pipes and sockets.
  /// kUnavailable: this process already watches 4,096 ends of channels of the arena.
  Result<int> fileno() const;

  /// As of a Sender.
  Result<ChannelStats> stats() const;
  /// As of a Sender.
  Result<std::string> handle() const;
  /// As of a Sender.
  static Result<Receiver> open(const std::string& handle);

  /// As of a Sender.
  void close();
  /// As of a Sender.
  bool closed() const noexcept;

 private:
  friend class Queue;
  friend struct api::ChannelState;
  friend struct detail::ForkAccess;
  friend Result<std::vector<std::size_t>> wait(std::span<const Receiver>, Timeout, const std::stop_token&);
  explicit Receiver(std::shared_ptr<api::ChannelState> state) noexcept : state_(std::move(state)) {}
  Status get_into(std::span<std::byte> out, Timeout timeout, const std::stop_token& stop) const;
  api::EndPointer state_;
};

/// The positions of those whose next get() returns, or fails, at once, be it since their stream has ended. Waits until
/// there is one; none after the timeout, and where there are no receivers. Another process may be quicker: get with a
/// timeout of zero. Notices a stop (kInterrupted), and an end that was closed meanwhile, within 250 ms.
Result<std::vector<std::size_t>> wait(std::span<const Receiver> receivers, Timeout timeout = std::nullopt,
                                      const std::stop_token& stop = {});

/// Both ends of a new channel. Throws BadResult when the arena cannot be made (kOs, kInvalid), the name is in use
/// (kExists), max_attempts is 2^32 or more or the channel that exists has other options (kInvalid, with both values),
/// or there is no memory (kOutOfSharedMemory).
std::pair<Sender, Receiver> make_pair(const PairOptions& options = {});

/// The ends of a channel that some process of this user named, from C++ or Python. kNotFound for a name that is not in
/// use, kInvalid for one that names something else, as a queue.
/// Waits up to `timeout` for a process to make it (kTimeout); by default, not at all.
Result<Sender> open_sender(const std::string& name, Timeout timeout = std::chrono::nanoseconds(0));
/// The same of a receiver.
Result<Receiver> open_receiver(const std::string& name, Timeout timeout = std::chrono::nanoseconds(0));

}  // namespace shmtree
