/// @file
/// Channels between processes.
///
///     auto [sender, receiver] = shmtree::make_pair({.capacity = 8});
///     sender.put(shmtree::Dict{{"obs", obs}, {"reward", 1.0}}, 3s).value();
///     shmtree::Item item = receiver.get(3s).value();
///
/// Ownership: Sender, Receiver and Arena are handles. Copies are cheap and refer to the same object. A process is
/// attached to an end from the moment it has a handle of it. It detaches when its last handle of that end is closed or
/// destroyed, when it exits, or when it uses the other end without ever having used this one. Forked children inherit
/// both ends.
///
/// Timeouts: std::nullopt blocks indefinitely, and zero does not block. A call returns at most 50 ms after its timeout.
/// A wait also ends when any thread closes the end (kClosed), and when the stop_token of the call is stopped
/// (kInterrupted). A call that waits for memory notices both within 250 ms. If the token was stopped before the call,
/// the call does nothing, even if it would not block.
///
/// Errors: full, empty, timed out, closed, the death of peers and lack of memory are results (result.h), not
/// exceptions.
///
/// Thread safety: any thread may make any call, on any copy of a handle. A moved-from end is closed.
///
/// Signal handlers: closed() is async-signal-safe. No other call is, since they take locks and allocate memory. Let the
/// handler set a flag or write to a pipe, and call from a thread.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
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
#include "shmtree/base/result.h"
#include "shmtree/containers.h"
#include "shmtree/flat.h"
#include "shmtree/frame.h"
#include "shmtree/item.h"
#include "shmtree/taken.h"
#include "shmtree/value.h"

namespace shmtree {

namespace detail {
struct ForkAccess;
}

namespace api {
std::shared_ptr<ChannelState> closed_end() noexcept;

/// Shared state of the handles of one end. A moved-from handle has a closed end.
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

/// Effect of the death of peers on calls that wait for them.
/// - kRaise: returns kPeerDied once no peer is left and one of them was killed or failed.
/// - kWait: waits for new peers.
/// - kEach: the next call that detects a death returns kPeerDied for it, even if other peers remain.
enum class OnPeerDeath { kRaise, kWait, kEach };

/// Policy of a put into a full channel: it blocks, or drops the oldest messages that no process has received.
enum class OnFull { kBlock, kDropOldest };

/// Ends at which processes wait for new peers once none is left, whether the last one was killed or exited.
class KeepOpen {
 public:
  /// The ends.
  enum Value : std::uint8_t {
    kNo,         ///< With no sender left, the stream ends; with no receiver left, senders get an error.
    kReceivers,  ///< Receivers wait for new senders.
    /// Senders wait for new receivers, too: put(), flush() and similar calls wait for one until their timeout.
    kBoth,
  };
  /// Converts from an enumerator.
  constexpr KeepOpen(Value value) noexcept : value_(value) {}
  /// `true` means kReceivers.
  template <std::same_as<bool> Flag>
  constexpr KeepOpen(Flag flag) noexcept : value_(flag ? kReceivers : kNo) {}
  /// Returns the enumerator.
  constexpr operator Value() const noexcept { return value_; }

 private:
  Value value_;
};

/// Options for make_pair().
struct PairOptions {
  std::uint64_t capacity = 8;  ///< Messages that can be queued, including returned ones. 0: unlimited.
  /// Bytes of the queued messages. 0: only the arena's budget limits them. An array that is sent by reference counts
  /// with the whole block that it is in, once for each message that refers to it.
  std::uint64_t max_bytes = 0;
  /// Name under which other processes of this user open the channel; empty: none. A named channel has its own arena
  /// unless `arena` is set.
  std::string name{};
  /// Arena to use. By default an arena of its own if `name` is set, otherwise Arena::shared().
  std::optional<Arena> arena{};
  OnPeerDeath on_peer_death = OnPeerDeath::kRaise;  ///< Effect of killed peers.
  std::uint64_t max_unacked = 0;   ///< Maximum number of unacked messages of all receivers together. 0: unlimited.
  std::uint64_t max_attempts = 0;  ///< Deliveries of a message before it is a dead letter. 0: unlimited.
  /// Allows Python programs that opt in as well to send and load pickles. Loading a pickle runs any code that its
  /// sender chose. By default, only channels without a name allow pickles.
  std::optional<bool> allow_pickle{};
  OnFull on_full = OnFull::kBlock;  ///< Policy of a put into a full channel.
  /// Ends at which processes wait for new peers. At these ends a kill has the effect of an exit, so that only kEach
  /// reports deaths. Messages that a dead or exited receiver took and did not ack return to the channel.
  KeepOpen keep_open = KeepOpen::kNo;
  /// Refuses values that have no meaning on other machines, such as ends and shared arrays (kInvalid).
  bool portable = false;
  bool exist_ok = false;  ///< Opens the channel named `name` if it exists. kInvalid if its options differ.
};

/// Statistics of a channel at one moment.
struct ChannelStats {
  std::uint64_t put = 0;           ///< Messages put in total.
  std::uint64_t received = 0;      ///< Messages received in total.
  std::uint64_t queued = 0;        ///< Messages that can be received.
  std::uint64_t queued_bytes = 0;  ///< Bytes of these messages, counted like `max_bytes`.
  std::uint64_t taken = 0;         ///< Unacked messages.
  std::uint64_t senders = 0;       ///< Processes that have a sender.
  std::uint64_t receivers = 0;     ///< Processes that have a receiver.
  /// Processes that count as attached senders. A process that only receives does not.
  std::uint64_t senders_attached = 0;
  /// Processes that count as attached receivers. A process that only sends does not.
  std::uint64_t receivers_attached = 0;
  /// Senders in transit: passed on by handle() or pickled, and not yet opened.
  std::uint64_t senders_in_transit = 0;
  std::uint64_t receivers_in_transit = 0;  ///< Receivers in transit.
  std::uint64_t dropped = 0;               ///< Messages that puts have dropped in total.
  /// Attached processes that have never used their sender, such as a launcher that forgot to close it. The stream does
  /// not end while there are any. So a receiver that waits for the end of the stream blocks until they close it.
  std::vector<int> senders_never_used{};
  std::vector<int> receivers_never_used{};  ///< Attached processes that have never used their receiver.
};

/// The sending end of a channel.
class Sender {
 public:
  /// Puts a message and returns its ticket. You may change the value, and the memory that its arrays refer to, as soon
  /// as the call returns. Arrays from new_array() are an exception.
  /// - kFull: the timeout expired.
  /// - kMessageTooLarge: the message exceeds a budget. Returned at once.
  /// - kOutOfSharedMemory: only views hold the memory.
  /// - kClosed: closed here, or the channel is full and no receiver is left. kPeerDied instead of the latter if one
  ///   was killed.
  /// - kInvalid: the value is nested too deeply, or has text that is not UTF-8, an impossible array, or an Item that
  ///   another put gives away. Also if it has a part that is not portable, and the channel is portable.
  /// - kPickleRefused: the value forwards a pickle, and the channel does not allow pickles.
  Result<std::uint64_t> put(const Value& value, Timeout timeout = std::nullopt) const;
  /// Does the same. `stop` also ends the wait (kInterrupted).
  Result<std::uint64_t> put(const Value& value, Timeout timeout, const std::stop_token& stop) const;
  /// Puts a dict: `put({{"obs", obs}, {"reward", 1.0}})`.
  Result<std::uint64_t> put(std::initializer_list<Entry> entries, Timeout timeout = std::nullopt,
                            const std::stop_token& stop = {}) const {
    return or_out_of_memory([&] { return put(Value(Dict(entries)), timeout, stop); });
  }
  /// Puts all values in order. Small messages are sent together, which costs less than separate puts. `timeout` applies
  /// to the whole call. After an error, `completed` is the number of messages put; the others were not. Errors are
  /// those of put().
  Status put_many(std::span<const Value> values, Timeout timeout = std::nullopt,
                  const std::stop_token& stop = {}) const;
  /// Does the same for a range of anything that converts to a Value. A single-pass range must yield its elements by
  /// value: a Value may refer to its source, which would be destroyed before the put.
  template <detail::RangeOfValues Range>
  Status put_many(Range&& range, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    return or_out_of_memory([&] {
      const std::vector<Value> values = detail::values_of(std::forward<Range>(range));
      return put_many(std::span<const Value>(values), timeout, stop);
    });
  }
  /// Forwards a received Item: `put(std::move(item))`. Works the same for a part of a Value: `Dict{{"obs",
  /// std::move(item)}}`. Its arrays are not copied if they are in this channel's arena and this is the last Item of the
  /// message (xtensor views and Held count as Items). The receiver then gets the arrays at the same address, and other
  /// views of them in this process must not be used any more. Otherwise the put copies.
  ///
  /// The item is empty after a successful put, and unchanged after an error. put(item) leaves it unchanged. Returns
  /// kPickleRefused, with the path, if the item contains a pickle and this channel does not allow pickles.
  template <std::same_as<Item> Moved>
  Result<std::uint64_t> put(Moved&& item, Timeout timeout = std::nullopt) const {
    return put_moved(item, timeout);
  }
  /// Does the same. `stop` also ends the wait (kInterrupted).
  template <std::same_as<Item> Moved>
  Result<std::uint64_t> put(Moved&& item, Timeout timeout, const std::stop_token& stop) const {
    return put_moved(item, timeout, stop);
  }
  /// Forwards received bytes: `put(std::move(flat))`. They arrive as an array of uint8, which get_bytes() and
  /// get_struct() accept like any bytes. They are not copied if they are in this channel's arena and this is the last
  /// FlatItem of the message, unless the message was taken and is not acked. The item is empty after a successful put,
  /// and unchanged after an error. A moved-from item is kInvalid. To send a copy, or `bytes` for Python, use
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
  // --- messages that consist of bytes only (flat.h)

  /// Puts a copy of the bytes. Python receives `bytes`. (A span that is put as a Value is an array.) Errors of this and
  /// the following calls, and the effect of `stop`, are those of put().
  Result<std::uint64_t> put_bytes(std::span<const std::byte> bytes, Timeout timeout = std::nullopt,
                                  const std::stop_token& stop = {}) const;
  /// Puts a copy of the bytes of a struct.
  template <FlatStruct T>
  Result<std::uint64_t> put_struct(const T& value, Timeout timeout = std::nullopt,
                                   const std::stop_token& stop = {}) const {
    return put_bytes(std::as_bytes(std::span<const T, 1>(&value, 1)), timeout, stop);
  }
  /// Puts a copy of each byte span as one message, in order, as put_many() does for values.
  Status put_many_bytes(std::span<const std::span<const std::byte>> runs, Timeout timeout = std::nullopt,
                        const std::stop_token& stop = {}) const;
  /// Does the same for structs, one message each.
  template <FlatStruct T>
  Status put_structs(std::span<const T> values, Timeout timeout = std::nullopt,
                     const std::stop_token& stop = {}) const {
    return put_runs(std::as_bytes(values), sizeof(T), timeout, stop);
  }
  /// Allocates a struct in shared memory and initialises it with T(), to be filled in place and then put. Waits like
  /// new_array().
  template <FlatStruct T>
  requires std::is_default_constructible_v<T> Result<Loaned<T>> loan(Timeout timeout = std::nullopt,
                                                                     const std::stop_token& stop = {})
  const { return detail::LoanAccess::make<T>(lend(sizeof(T), timeout, stop)); }
  /// Does the same for `count` uninitialised bytes, at least one.
  Result<LoanedBytes> loan_bytes(std::size_t count, Timeout timeout = std::nullopt,
                                 const std::stop_token& stop = {}) const {
    return detail::LoanAccess::make_bytes(lend(count, timeout, stop), count);
  }
  /// Puts a loan without a copy: `put(std::move(loan))`. The loan is empty afterwards, and unchanged after an error.
  /// kInvalid: the loan is empty, is of another arena, or is put by a forked child.
  template <class T>
  Result<std::uint64_t> put(Loaned<T>&& loan, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    return detail::LoanAccess::put(loan, [&](detail::LoanedBlock* block) { return put_lent(block, timeout, stop); });
  }
  /// Puts the value of a frame, or of bytes that begin with a frame (frame.h), without decoding it.
  /// - kCorrupt, kIncompatible: the frame is invalid.
  /// - kInvalid: the frame has a handle, or it is not portable and the channel is.
  /// - Other errors are those of put().
  Result<std::uint64_t> put_frame(const FrameSource& frame, Timeout timeout = std::nullopt,
                                  const std::stop_token& stop = {}) const;

  /// True if put() of a small message would not block.
  bool has_space() const;

  /// Waits until at least `count` processes are attached as receivers, whether they have received or not. From this
  /// call on, a process that has both ends and has never received counts as a sender only.
  /// - kTimeout: fewer are attached. The error has both numbers.
  Status wait_for_receivers(std::size_t count, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;

  /// Waits until the message with this ticket has been received, and acked if it was taken.
  /// - kTimeout: the timeout expired.
  /// - kPeerDied: no receiver is left that could ack the message, and one was killed. kClosed: none is left and none
  ///   was killed, or another thread has closed the sender. A call after close() waits as long as this process has an
  ///   end.
  Status wait_for_ack(std::uint64_t ticket, Timeout timeout = std::nullopt) const;
  /// Does the same. `stop` also ends the wait (kInterrupted).
  Status wait_for_ack(std::uint64_t ticket, Timeout timeout, const std::stop_token& stop) const;
  /// Does the same for all messages that this process has put.
  Status wait_for_all_ack(Timeout timeout = std::nullopt) const;
  /// Does the same. `stop` also ends the wait (kInterrupted).
  Status wait_for_all_ack(Timeout timeout, const std::stop_token& stop) const;
  /// Does the same as wait_for_all_ack().
  Status flush(Timeout timeout = std::nullopt) const { return wait_for_all_ack(timeout); }
  /// Does the same. `stop` also ends the wait (kInterrupted).
  Status flush(Timeout timeout, const std::stop_token& stop) const { return wait_for_all_ack(timeout, stop); }
  /// Returns the number of messages put by this process that wait_for_all_ack() would wait for; 0 if this process has
  /// no end of the channel any more.
  std::uint64_t pending_acks() const;
  /// Returns the number of messages that the puts of all senders have dropped (OnFull::kDropOldest); 0 if this process
  /// has no end of the channel any more.
  std::uint64_t dropped() const;

  /// Allocates an array in this channel's arena. See Arena::new_array().
  Result<NewArray> new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout = std::nullopt) const;
  /// Does the same. `stop` also ends the wait (kInterrupted).
  Result<NewArray> new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout,
                             const std::stop_token& stop) const;

  /// Returns a text with which a process of the same user opens this end. From this call on, the end is in transit and
  /// counts as attached, until it is opened or until 60 s after this process has exited. A later open() returns kClosed
  /// if the stream has ended in the meantime. kOutOfSharedMemory: there is no memory to record the transfer.
  Result<std::string> handle() const;
  /// Opens the sender of a handle.
  /// - kInvalid: the text is not a handle of a sender, or it is of a Service, into which only a Client sends. The
  /// handle of a queue needs Queue::open(), which has sender().
  /// - kClosed: the stream has ended.
  /// - kNotFound, kUnavailable, kIncompatible: the arena cannot be opened.
  static Result<Sender> open(const std::string& handle);

  /// Returns the statistics; kClosed after close().
  Result<ChannelStats> stats() const;
  /// Closes this handle and all its copies, without blocking. The channel is released as soon as no other thread is in
  /// a call of this end. When the process closes its last end of the channel, it also releases the channel's name,
  /// memory and descriptors, except those that items and arrays still need.
  ///
  /// Later calls return kClosed. Calls that wait for acks return it only once the process has no other end of the
  /// channel. A put() in progress in another thread either returns kClosed, or its message is received before the end
  /// of the stream.
  void close();
  /// Closes like close(), and reports a failure, such as an exception that this process has caught: receivers get all
  /// messages, and then kPeerDied with this process's id instead of kClosed.
  void fail();
  /// Makes each call that waits at this object poll for up to `spin` before it sleeps. With 0, only puts and gets spin,
  /// for a time that adapts to the traffic. Applies to all copies of this handle, in this process. Its arena sets the
  /// first value (ArenaOptions::spin). kInvalid: negative.
  Status set_spin(std::chrono::nanoseconds spin) const;
  /// Returns the time that set_spin() or the arena has set.
  std::chrono::nanoseconds spin() const noexcept;
  /// True if close() was called or this object was moved from.
  bool closed() const noexcept;

 private:
  friend class Queue;
  friend struct api::ChannelState;
  friend struct detail::ForkAccess;
  explicit Sender(std::shared_ptr<api::ChannelState> state) noexcept : state_(std::move(state)) {}
  Result<std::uint64_t> put_moved(Item& item, Timeout timeout) const;
  Result<std::uint64_t> put_moved(Item& item, Timeout timeout, const std::stop_token& stop) const;
  Result<detail::Lent> lend(std::size_t bytes, Timeout timeout, const std::stop_token& stop) const;
  Status put_runs(std::span<const std::byte> runs, std::size_t each, Timeout timeout,
                  const std::stop_token& stop) const;
  Result<std::uint64_t> put_flat(const FlatItem& item, Timeout timeout, const std::stop_token& stop) const;
  Result<std::uint64_t> put_lent(detail::LoanedBlock* block, Timeout timeout, const std::stop_token& stop) const;
  template <class Put>
  Result<std::uint64_t> forward(Item& item, Put put) const;
  api::EndPointer state_;
};

namespace detail {

/// Iterates over the messages of a stream with get() of an End.
template <class End>
class StreamIterator {
 public:
  using value_type = Item;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::input_iterator_tag;
  using pointer = const Item*;
  using reference = const Item&;

  explicit StreamIterator(const End& end) : end_(end) { ++*this; }
  const Item& operator*() const& noexcept { return *item_; }
  Item operator*() && noexcept { return *std::move(item_); }
  const Item* operator->() const& noexcept { return &*item_; }
  const Item* operator->() const&& = delete;
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

/// The receiving end of a channel.
class Receiver {
 public:
  /// Receives the next message. Its arrays are views of shared memory that the Item keeps alive.
  /// - kEmpty: no message arrived in time.
  /// - kClosed: closed here, or every sender has closed or exited and all messages are received. kPeerDied instead of
  ///   the latter, once, if a sender was killed or failed.
  /// - kCorrupt: the message was damaged. It is consumed.
  /// - kOutOfSharedMemory: this process has no memory or address space for the message. It stays in the channel, or
  ///   is returned to it.
  /// - Never kPickleRefused: a pickle from Python arrives as an Item of kind kPickle.
  Result<Item> get(Timeout timeout = std::nullopt) const;
  /// Does the same. `stop` also ends the wait (kInterrupted).
  Result<Item> get(Timeout timeout, const std::stop_token& stop) const;
  /// Waits for one message, then receives those available: 1 to `most` items in total. If a later message fails, the
  /// next call returns its error.
  Result<std::vector<Item>> get_many(std::size_t most, Timeout timeout = std::nullopt) const;
  /// Does the same. `stop` also ends the wait (kInterrupted).
  Result<std::vector<Item>> get_many(std::size_t most, Timeout timeout, const std::stop_token& stop) const;
  /// Does the same, and waits for more messages until it has `most`, for up to `within` after the first.
  Result<std::vector<Item>> get_many(std::size_t most, Timeout timeout, std::chrono::nanoseconds within,
                                     const std::stop_token& stop = {}) const;
  /// Receives the next message as bytes (flat.h). Accepts messages of put_bytes(), put_struct() and loans, and other
  /// messages that are bytes, a bytearray or an array of uint8. Errors are those of get(), and kInvalid: the message is
  /// none of these, or (get_struct) its size differs from that of the struct. It is consumed, and the error has its
  /// ticket.
  Result<FlatItem> get_bytes(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// Does the same, and copies the bytes to a struct.
  template <FlatStruct T>
  Result<T> get_struct(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    T value;
    Status got = get_into(std::as_writable_bytes(std::span<T, 1>(&value, 1)), timeout, stop);
    if (!got) return std::move(got).error();
    return value;
  }
  /// Does both for up to `most` messages, as get_many() does for Items.
  Result<std::vector<FlatItem>> get_many_bytes(std::size_t most, Timeout timeout = std::nullopt,
                                               const std::stop_token& stop = {}) const;
  /// Receives structs into `out`, which has space for at least one. Waits for the first message, and then receives
  /// those that are queued, up to the size of `out`. Returns their number. A later message that is not a struct of this
  /// size stays in the channel for the next call.
  /// - kInvalid: the first message is not a struct of this size, or `out` is empty.
  template <FlatStruct T>
  Result<std::size_t> get_structs(std::span<T> out, Timeout timeout = std::nullopt,
                                  const std::stop_token& stop = {}) const {
    return get_runs(std::as_writable_bytes(out), sizeof(T), timeout, stop);
  }
  /// Receives a message that must be acked, see Taken. Errors are those of get(). Also waits while `max_unacked`
  /// messages are unacked.
  Result<TakenItem> take(Timeout timeout = std::nullopt) const;
  /// Does the same. `stop` also ends the wait (kInterrupted).
  Result<TakenItem> take(Timeout timeout, const std::stop_token& stop) const;
  /// Does the same as bytes, like get_bytes(). kInvalid: the message does not consist of bytes. It is consumed.
  Result<TakenBytes> take_bytes(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// Takes 1 to `most` messages as frames (frame.h), without decoding. Waits for one, then takes those available.
  Result<std::vector<TakenFrame>> take_frames(std::size_t most, Timeout timeout = std::nullopt,
                                              const std::stop_token& stop = {}) const;
  /// Returns the dead letters, oldest first, except those that another process is inspecting. A message becomes a dead
  /// letter after `max_attempts` deliveries, or after eight receivers in a row had no memory to build it. Ack it to
  /// drop it. Senders do not wait for dead letters. The call does not count as a use of this end.
  /// - kCorrupt: one dead letter was damaged. It is consumed.
  /// - kOutOfSharedMemory: there is no memory for one dead letter. All of them stay in the channel.
  Result<std::vector<TakenItem>> dead_letters() const;

  /// Iterates over all messages to the end of the stream: `for (const Item& item : receiver)`. Before it waits for the
  /// next message, it releases the previous one, unless you have copied the Item. Ends when get() would return kClosed,
  /// also if this end was closed. Throws BadResult for every other error; begin() then continues after it. Use one
  /// iterator at a time.
  using Iterator = detail::StreamIterator<Receiver>;
  /// Waits for the next message.
  Iterator begin() const { return Iterator(*this); }
  /// Returns the end of the stream.
  std::default_sentinel_t end() const noexcept { return {}; }

  /// Returns the number of messages that can be received, including returned ones; 0 if this process has no end of the
  /// channel any more.
  std::uint64_t size() const;
  /// True if no message can be received.
  bool empty() const { return size() == 0; }
  /// Returns a descriptor that is readable while get() would not block. The channel owns it, and closes it with the
  /// process's last receiver. The death of the last sending process also makes it readable, if that process had the end
  /// when this was called or when the last message was received.
  /// - kOs: the system refuses pidfd_open, or both pipes and sockets.
  /// - kUnavailable: this process already watches 4,096 ends of channels of the arena.
  Result<int> fileno() const;

  /// See Sender::stats().
  Result<ChannelStats> stats() const;
  /// See Sender::handle().
  Result<std::string> handle() const;
  /// Opens the receiver of a handle. See Sender::open().
  static Result<Receiver> open(const std::string& handle);

  /// See Sender::close().
  void close();
  /// See Sender::set_spin().
  Status set_spin(std::chrono::nanoseconds spin) const;
  /// See Sender::set_spin().
  std::chrono::nanoseconds spin() const noexcept;
  /// See Sender::closed().
  bool closed() const noexcept;

 private:
  friend class Queue;
  friend struct api::ChannelState;
  friend struct detail::ForkAccess;
  friend Result<std::vector<std::size_t>> wait(std::span<const Receiver>, Timeout, const std::stop_token&);
  explicit Receiver(std::shared_ptr<api::ChannelState> state) noexcept : state_(std::move(state)) {}
  Status get_into(std::span<std::byte> out, Timeout timeout, const std::stop_token& stop) const;
  Result<std::size_t> get_runs(std::span<std::byte> out, std::size_t each, Timeout timeout,
                               const std::stop_token& stop) const;
  api::EndPointer state_;
};

/// Waits until get() of at least one receiver would return or fail at once, also because its stream has ended. Returns
/// the positions of these receivers; empty after the timeout, or if `receivers` is empty. Another process may receive
/// the message first, so call get() with a timeout of zero. Notices a stop request (kInterrupted), and an end that was
/// closed in the meantime, within 250 ms.
Result<std::vector<std::size_t>> wait(std::span<const Receiver> receivers, Timeout timeout = std::nullopt,
                                      const std::stop_token& stop = {});

/// Makes a channel and returns both ends. Throws BadResult.
/// - kOs, kInvalid: the arena cannot be created.
/// - kExists: the name is in use.
/// - kInvalid: max_attempts is 2^32 or more, or the existing channel has other options; the error has both values.
/// - kOutOfSharedMemory: there is no memory.
std::pair<Sender, Receiver> make_pair(const PairOptions& options = {});

/// Opens the sender of a channel that a process of this user has named, in C++ or Python. Waits up to `timeout` for a
/// process to make it (kTimeout); by default it does not wait. Returns kNotFound if the name is not in use, and
/// kInvalid if it belongs to another kind of object, such as a queue, or to a Service.
Result<Sender> open_sender(const std::string& name, Timeout timeout = std::chrono::nanoseconds(0));
/// Does the same for a receiver.
Result<Receiver> open_receiver(const std::string& name, Timeout timeout = std::chrono::nanoseconds(0));

}  // namespace shmtree
