/// @file
/// A ring of messages that every reader receives in full: camera frames for several consumers, events for all.
///
///     const shmtree::Broadcast camera = shmtree::make_broadcast({.capacity = 8});
///     const shmtree::Subscriber recorder = camera.subscribe().value();         // misses nothing: put() waits for it
///     const shmtree::Subscriber display = camera.subscribe({.on_lag = shmtree::OnLag::kLatest}).value();
///     camera.put(shmtree::Dict{{"seq", 1}, {"image", image}}).value();         // copied once, however many read it
///     shmtree::Item frame = display.get(3s).value();                           // large arrays are views
///
/// Interoperates with shmtree.Broadcast of Python: by name, by handle, and inside messages. Any number of processes may
/// put. A Broadcast has at most 256 subscriptions at a time, each with its own read position. put() waits for the
/// blocking subscribers that are alive, and for no others. Received arrays are read-only, because all readers share the
/// memory. They do not change while the Item, or a view of array.h, exists.
///
/// A process is a publisher from its first put() until it closes or drops its last Broadcast, or exits. When no
/// publisher is left, subscribers receive the remaining messages and then kClosed. If a publisher was killed, they get
/// kPeerDied with the process ids instead of kClosed. Both errors last until a process puts again. Before the first
/// message, the process that made the Broadcast counts as a publisher. So does each process that opened it, unless it
/// waits for a message itself.
///
/// Ownership, timeouts and thread safety are those of pair.h. A Broadcast and a Subscriber are handles: copies refer to
/// the same object, and any thread may use them.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "shmtree/arena.h"
#include "shmtree/base/result.h"
#include "shmtree/flat.h"
#include "shmtree/item.h"
#include "shmtree/pair.h"
#include "shmtree/value.h"

namespace shmtree {

class Subscriber;

namespace api {
struct BroadcastState;
struct SubscriberState;
Result<std::vector<std::size_t>> wait_for(std::span<const Subscriber> subscribers, Timeout timeout,
                                          const std::stop_token& stop);
}  // namespace api

/// Policy for a reader that is slower than the publishers.
enum class OnLag {
  kBlock,   ///< Publishers wait for the reader, so it misses nothing.
  kSkip,    ///< The reader misses overwritten messages, and continues with the last `capacity` messages.
  kLatest,  ///< The reader always gets the newest message.
  kRaise,   ///< Like kSkip, but get() returns kOverrun once before it continues.
};

/// Start position of a reader.
enum class StartAt {
  kNext,    ///< The first message that is put after the subscription.
  kOldest,  ///< The oldest message that is still in the ring.
};

/// Options for Broadcast::subscribe().
struct Subscription {
  StartAt start = StartAt::kNext;  ///< Start position.
  OnLag on_lag = OnLag::kBlock;    ///< Policy if the reader is too slow.
};

/// Options for make_broadcast().
struct BroadcastOptions {
  std::uint64_t capacity = 8;  ///< Number of messages by which the slowest blocking reader may lag: 1 to 2^20 - 1.
  /// Maximum bytes of the messages that the slowest blocking reader has not read, see PairOptions. 0: only the arena's
  /// budget limits them.
  std::uint64_t max_bytes = 0;
  std::uint64_t history = 0;  ///< Messages kept for later subscribers even after all readers have read them.
  /// Name for open_broadcast() and Python's Broadcast.open(). Has its own arena unless `arena` is set.
  std::string name{};
  /// Arena to use. By default an arena of its own if `name` is set, otherwise Arena::shared().
  std::optional<Arena> arena{};
  std::optional<bool> allow_pickle{};  ///< Allows Python to put pickles. By default only without a name.
  /// kWait: the stream never ends; subscribers wait for the next publisher. kEach is kInvalid.
  OnPeerDeath on_peer_death = OnPeerDeath::kRaise;
  /// Any value except kNo has the effect of kWait: subscribers wait for the next publisher, whether the last one was
  /// killed or exited.
  KeepOpen keep_open = KeepOpen::kNo;
  bool exist_ok = false;  ///< See PairOptions.
};

/// Statistics of a Broadcast.
struct BroadcastStats {
  std::uint64_t put = 0;          ///< Messages put in total.
  std::uint64_t capacity = 0;     ///< BroadcastOptions::capacity.
  std::uint64_t history = 0;      ///< BroadcastOptions::history.
  std::uint64_t kept = 0;         ///< Messages in the ring that a non-blocking reader can still get.
  std::uint64_t subscribers = 0;  ///< Subscriptions, including those of dead processes not yet detected.
  std::vector<int> publishers{};  ///< Process ids of the publishers.
};

/// A reader of a Broadcast with its own position. Made by Broadcast::subscribe().
///
/// One process may make a subscription and another may use it. Until the first get(), every process that made the
/// subscription, inherited it over fork, or opened its handle is attached to it. The subscription ends when the last
/// attached process has closed or dropped it, or has exited. From the first get() on, only the process that called
/// get() is attached; calls of other processes return kClosed. Several threads may read from a subscription; each
/// message goes to one of them.
class Subscriber {
 public:
  /// Receives the next message. Arrays are read-only views of shared memory that the Item keeps alive. If processes
  /// hold more than half of the arena's budget, the Item contains a copy instead.
  /// - kEmpty: no message arrived in time.
  /// - kOverrun: `missed` messages were overwritten or given up before they were read (only with OnLag::kRaise).
  ///   The next call continues with the messages after them.
  /// - kClosed: the subscription was closed here or belongs to another process, or no publisher is left and every
  ///   message has been read. If a publisher was killed, kPeerDied takes the place of kClosed for the last reason.
  /// - kCorrupt: the message was damaged. The next call continues with the message after it.
  /// - kOutOfSharedMemory: this process has no memory for the message. The next call returns the same message, or a
  ///   newer one (OnLag::kLatest). After eight failures in a row the message is given up, and counts as missed.
  Result<Item> get(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// Waits for one message, then receives those available: 1 to `most` items in total. If a later message fails, the
  /// next call returns its error.
  Result<std::vector<Item>> get_many(std::size_t most, Timeout timeout = std::nullopt,
                                     const std::stop_token& stop = {}) const;
  /// Does the same, and waits for more messages until it has `most`, for up to `within` after the first.
  Result<std::vector<Item>> get_many(std::size_t most, Timeout timeout, std::chrono::nanoseconds within,
                                     const std::stop_token& stop = {}) const;
  /// Receives the next message as bytes (flat.h), like Receiver::get_bytes(). kInvalid: the message does not consist of
  /// bytes, or (get_struct) its size differs from that of the struct. The message is skipped; the error has its ticket.
  Result<FlatItem> get_bytes(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// Does the same, and copies the bytes to a struct.
  template <FlatStruct T>
  Result<T> get_struct(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    T value;
    Status got = get_into(std::as_writable_bytes(std::span<T, 1>(&value, 1)), timeout, stop);
    if (!got) return std::move(got).error();
    return value;
  }

  /// Iterates over all messages to the end of the stream: `for (const Item& item : subscriber)`. Throws BadResult for
  /// any other error of get(), such as kOverrun; begin() then continues with the next message.
  using Iterator = detail::StreamIterator<Subscriber>;
  /// Waits for the next message.
  Iterator begin() const { return Iterator(*this); }
  /// Returns the end of the stream.
  std::default_sentinel_t end() const noexcept { return {}; }

  /// Returns the number of messages available now; 0 after close().
  std::uint64_t size() const noexcept;
  /// True if no message is available now.
  bool empty() const noexcept { return size() == 0; }
  /// Returns the number of messages missed so far; 0 after close().
  std::uint64_t missed() const noexcept;
  /// Returns a descriptor that is readable while a message is available or no publisher is left. This object owns it,
  /// and closes it. The call counts as a use of the subscription, like get(): from then on, only this process is
  /// attached. If several threads read, another thread may receive the message first. Only wait() and calls that block
  /// detect the death of publishers. The limit of 4,096 ends (see Receiver::fileno()) does not apply.
  /// - kClosed: the subscription was closed here or belongs to another process.
  /// - kOs: no descriptor is available.
  Result<int> fileno() const;

  /// Returns a text with which a process of the same user opens the subscription, through open(). The subscription
  /// stays alive until a process opens it, this process exits, or close() is called here. Therefore do not close it
  /// while it is in transit. kClosed: it is closed, or a process has already read from it.
  Result<std::string> handle() const;
  /// Opens the subscription of a handle.
  /// - kInvalid: the text is not a handle.
  /// - kIncompatible: the handle is of another kind of object.
  /// - kNotFound: no process is attached any more, or a process has read from it and exited.
  static Result<Subscriber> open(const std::string& handle);

  /// Detaches this process from the subscription, for this object and its copies. Publishers stop waiting for the
  /// subscription, unless other processes are attached to it and none has read from it. Items and views stay valid.
  void close();
  /// See Sender::set_spin().
  Status set_spin(std::chrono::nanoseconds spin) const;
  /// See Sender::set_spin().
  std::chrono::nanoseconds spin() const noexcept;
  /// True if this object was closed or moved from.
  bool closed() const noexcept;

 private:
  friend struct api::SubscriberState;
  friend Result<std::vector<std::size_t>> api::wait_for(std::span<const Subscriber>, Timeout, const std::stop_token&);
  explicit Subscriber(std::shared_ptr<api::SubscriberState> state) noexcept : state_(std::move(state)) {}
  Status get_into(std::span<std::byte> out, Timeout timeout, const std::stop_token& stop) const;
  std::shared_ptr<api::SubscriberState> state_;
};

/// A handle of a Broadcast, for publishers.
class Broadcast {
 public:
  /// Puts a message for all readers and returns its ticket: 0, 1, 2, ... Succeeds without readers, too. You may change
  /// the value afterwards, except arrays of new_array(), which are transferred. Blocks while a live blocking reader
  /// lags by `capacity` messages, and while the arena has no free memory.
  /// - kFull: the timeout expired. The error names the process for which the call waited.
  /// - kTimeout: a stopped process, which the error names, held the arena's lock.
  /// - kOutOfSharedMemory: only views that processes hold use up the memory.
  /// - kMessageTooLarge: the message exceeds the arena's budget.
  /// - kInvalid, kPickleRefused: see Sender::put().
  /// - kClosed: closed here.
  /// - Never kPeerDied: put() stops waiting for a reader that was killed.
  Result<std::uint64_t> put(const Value& value, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// Puts a dict: `put({{"obs", obs}, {"reward", 1.0}})`.
  Result<std::uint64_t> put(std::initializer_list<Entry> entries, Timeout timeout = std::nullopt,
                            const std::stop_token& stop = {}) const {
    return or_out_of_memory([&] { return put(Value(Dict(entries)), timeout, stop); });
  }
  /// Puts a Cap'n Proto message with root type T, as Sender::put() does.
  template <class T, detail::CapnpBuilder<T> Builder>
  Result<std::uint64_t> put(Builder& builder, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    return detail::put_capnp<T>(builder, [&](const Value& value) { return put(value, timeout, stop); });
  }
  /// Puts all values in order. `timeout` applies to the whole call. After an error, `completed` is the number of
  /// messages put; the others were not. Errors are those of put().
  Status put_many(std::span<const Value> values, Timeout timeout = std::nullopt,
                  const std::stop_token& stop = {}) const;
  /// Does the same for a range of anything that converts to a Value, see Sender::put_many().
  template <detail::RangeOfValues Range>
  Status put_many(Range&& range, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    return or_out_of_memory([&] {
      const std::vector<Value> values = detail::values_of(std::forward<Range>(range));
      return put_many(std::span<const Value>(values), timeout, stop);
    });
  }
  /// Puts a copy of the bytes. Python receives `bytes`; get_bytes() and get_struct() receive them as they are.
  Result<std::uint64_t> put_bytes(std::span<const std::byte> bytes, Timeout timeout = std::nullopt,
                                  const std::stop_token& stop = {}) const;
  /// Puts a copy of the bytes of a struct.
  template <FlatStruct T>
  Result<std::uint64_t> put_struct(const T& value, Timeout timeout = std::nullopt,
                                   const std::stop_token& stop = {}) const {
    return put_bytes(std::as_bytes(std::span<const T, 1>(&value, 1)), timeout, stop);
  }
  /// Allocates a struct in shared memory, to be filled in place and then put, like Sender::loan(). Waits for memory.
  template <FlatStruct T>
  requires std::is_default_constructible_v<T> Result<Loaned<T>> loan(Timeout timeout = std::nullopt,
                                                                     const std::stop_token& stop = {})
  const { return detail::LoanAccess::make<T>(lend(sizeof(T), timeout, stop)); }
  /// Does the same for `count` uninitialised bytes, at least one.
  Result<LoanedBytes> loan_bytes(std::size_t count, Timeout timeout = std::nullopt,
                                 const std::stop_token& stop = {}) const {
    return detail::LoanAccess::make_bytes(lend(count, timeout, stop), count);
  }
  /// Puts a loan without a copy, see Sender::put(). Loans of a Sender are kInvalid here, and vice versa.
  template <class T>
  Result<std::uint64_t> put(Loaned<T>&& loan, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    return detail::LoanAccess::put(loan, [&](detail::LoanedBlock* block) { return put_lent(block, timeout, stop); });
  }

  /// Makes a subscription. Does not wait for memory.
  /// - kInvalid: there are 256 subscriptions already.
  /// - kOutOfSharedMemory: the arena does not have the 4 KiB that a subscription needs.
  /// - kTimeout: a stopped process, which the error names, holds the lock of this Broadcast or of the arena.
  /// - kClosed: closed here.
  Result<Subscriber> subscribe(const Subscription& how = {}, Timeout timeout = std::nullopt,
                               const std::stop_token& stop = {}) const;

  /// True if put() of a small message would not block.
  bool has_space() const noexcept;
  /// Waits until all blocking readers have read the message with this ticket and all earlier messages.
  /// - kTimeout: the timeout expired. The error names a process that has not read them.
  /// - kInvalid: put() has returned no such ticket.
  /// - kClosed: closed here.
  Status wait_for_ack(std::uint64_t ticket, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// Does the same for all messages that this object and its copies have put.
  Status wait_for_all_ack(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// Waits until there are at least `count` subscriptions, so that their readers get the next message. kTimeout: there
  /// are fewer. The error has both numbers.
  Status wait_for_subscribers(std::size_t count, Timeout timeout = std::nullopt,
                              const std::stop_token& stop = {}) const;
  /// Does the same as wait_for_all_ack().
  Status flush(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    return wait_for_all_ack(timeout, stop);
  }
  /// Returns the number of messages that at least one blocking reader has not read, counted up to the last message that
  /// this object has put; 0 after close().
  std::uint64_t pending_acks() const noexcept;
  /// Returns the maximum number of messages by which a blocking reader may lag; 0 after close().
  std::uint64_t capacity() const noexcept;
  /// Returns the statistics; kClosed after close().
  Result<BroadcastStats> stats() const;

  /// Allocates an array to be filled in place, which put() refers to. See Arena::new_array().
  Result<NewArray> new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout = std::nullopt,
                             const std::stop_token& stop = {}) const;

  /// Returns a text with which a process of the same user opens this Broadcast. The Broadcast stays alive until that
  /// process has opened it, even if you close this object earlier. Returns kClosed after close(), and
  /// kOutOfSharedMemory if there is no memory to record the transfer.
  Result<std::string> handle() const;
  /// Opens the Broadcast of a handle. Errors are those of Latest::open().
  static Result<Broadcast> open(const std::string& handle);

  /// Ends publishing through this object and its copies. Subscribers stay.
  void close();
  /// Closes like close(), and reports a failure, such as an exception that this process has caught. Once no publisher
  /// is left, subscribers get all messages, and then kPeerDied with this process's id instead of kClosed.
  void fail();
  /// See Sender::set_spin().
  Status set_spin(std::chrono::nanoseconds spin) const;
  /// See Sender::set_spin().
  std::chrono::nanoseconds spin() const noexcept;
  /// True if this object was closed or moved from.
  bool closed() const noexcept;

 private:
  friend struct api::BroadcastState;
  explicit Broadcast(std::shared_ptr<api::BroadcastState> state) noexcept : state_(std::move(state)) {}
  Result<detail::Lent> lend(std::size_t bytes, Timeout timeout, const std::stop_token& stop) const;
  Result<std::uint64_t> put_lent(detail::LoanedBlock* block, Timeout timeout, const std::stop_token& stop) const;
  std::shared_ptr<api::BroadcastState> state_;
};

/// Like wait() for receivers, for a contiguous range of subscribers. Notices a stop request, a close, and the death of
/// publishers within 250 ms.
template <std::convertible_to<std::span<const Subscriber>> Subscribers>
Result<std::vector<std::size_t>> wait(const Subscribers& subscribers, Timeout timeout = std::nullopt,
                                      const std::stop_token& stop = {}) {
  return api::wait_for(subscribers, timeout, stop);
}

/// Makes a Broadcast. Throws BadResult.
/// - kExists: the name is in use.
/// - kInvalid: a number is too large, the capacity is 0, or `on_peer_death` is kEach.
/// - kOutOfSharedMemory: there is no memory.
Broadcast make_broadcast(const BroadcastOptions& options = {});

/// Opens the Broadcast that a process of this user has named, in C++ or Python. Waits up to `timeout` for a process to
/// make it (kTimeout); by default it does not wait. Returns kNotFound if the name is not in use, and kInvalid if it
/// belongs to another kind of object.
Result<Broadcast> open_broadcast(const std::string& name, Timeout timeout = std::chrono::nanoseconds(0));

/// Opens a Broadcast that a Python program has put into a message: `item["frames"].as<shmtree::Broadcast>()`. Errors
/// are those of Broadcast::open(), and kInvalid for another item.
template <>
struct ItemAs<Broadcast> {
  static Result<Broadcast> make(const Item& item);
};
/// Does the same for a subscription.
template <>
struct ItemAs<Subscriber> {
  static Result<Subscriber> make(const Item& item);
};

}  // namespace shmtree
