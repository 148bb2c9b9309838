/// @file
/// Messages of which every reader sees each: frames to several consumers, events to everybody.
///
///     const shmtree::Broadcast camera = shmtree::make_broadcast({.capacity = 8});
///     const shmtree::Subscriber recorder = camera.subscribe().value();         // misses nothing: put() waits for it
///     const shmtree::Subscriber display = camera.subscribe({.behind = shmtree::FallBehind::kLatest}).value();
///     camera.put(shmtree::Dict{{"seq", 1}, {"image", image}}).value();         // copied once, however many read it
///     shmtree::Item frame = display.get(3s).value();                           // large arrays are views
///
/// The same as shmtree.Broadcast of Python: by name, by handle, and in messages. Any number of processes put, and up to
/// 256 subscriptions are there at a time. Each reader has its own place; put() waits for those that are to miss nothing
/// while they live, and for nobody else. Received arrays are read-only, since all readers have the same memory, and
/// stay as they are for as long as the Item or a view of array.h is there.
///
/// A process puts from its first put() until it closes its last Broadcast, drops it, or ends. When nobody is left who
/// puts, subscribers get what is there, and then kClosed, or kPeerDied with the pids when one of those who did was
/// killed, until somebody puts again.
///
/// Ownership, timeouts and thread safety are those of pair.h: a Broadcast and a Subscriber are handles, copies name the
/// same one, any thread may use it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
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
#include "shmtree/flat.h"
#include "shmtree/item.h"
#include "shmtree/pair.h"
#include "shmtree/result.h"
#include "shmtree/value.h"

namespace shmtree {

class Subscriber;

namespace api {
struct BroadcastState;
struct SubscriberState;
Result<std::vector<std::size_t>> wait_for(std::span<const Subscriber> subscribers, Timeout timeout,
                                          const std::stop_token& stop);
}  // namespace api

/// What becomes of a reader that is slower than those who put.
enum class FallBehind {
  kBlock,   ///< they wait for it: it misses nothing
  kSkip,    ///< it misses what was overwritten, and finds the last `capacity` messages
  kLatest,  ///< it finds the last message
  kRaise,   ///< as kSkip, and is told: kOverrun, once, before it reads on
};

/// Where a reader begins.
enum class StartAt {
  kNext,    ///< what is put from now on
  kOldest,  ///< the oldest message that is there
};

/// How Broadcast::subscribe() makes a reader.
struct Subscription {
  StartAt start = StartAt::kNext;          ///< where it begins
  FallBehind behind = FallBehind::kBlock;  ///< what becomes of it when it is slow
};

/// What make_broadcast() makes.
struct BroadcastOptions {
  std::uint64_t capacity = 8;   ///< messages that the slowest blocking reader may be behind; below 2^20, at least 1
  std::uint64_t max_bytes = 0;  ///< of those that it has not read, as of PairOptions; 0 is no limit but the arena's
  std::uint64_t history = 0;    ///< messages that are kept for those who come later, though all have read them
  std::string name{};  ///< for open_broadcast(), and Broadcast.open() of Python; an arena of its own unless given
  std::optional<Arena> arena{};        ///< where it lies; without one that of the process, or of the name
  std::optional<bool> allow_pickle{};  ///< whether Python may put pickles; by default without a name
  /// kWait: there is no end, subscribers wait for whoever puts next. kEach is kInvalid.
  OnPeerDeath on_peer_death = OnPeerDeath::kRaise;
  bool exist_ok = false;  ///< as of PairOptions
};

/// Numbers of a Broadcast.
struct BroadcastStats {
  std::uint64_t put = 0;          ///< messages in all
  std::uint64_t capacity = 0;     ///< as it was made
  std::uint64_t history = 0;      ///< as it was made
  std::uint64_t kept = 0;         ///< messages that a reader which may fall behind finds
  std::uint64_t subscribers = 0;  ///< subscriptions, those of processes that died and were not noticed yet included
  std::vector<int> publishers{};  ///< the processes that put
};

/// A reader of a Broadcast, with a place of its own; made by Broadcast::subscribe().
///
/// One process may make a subscription and another may use it. Until its first get(), every process that made it,
/// inherited it over fork, or opened its handle is attached. The subscription ends when the last attached process has
/// closed or dropped it, or has exited. From the first get() on, only the process that called get() is attached; calls
/// of other processes return kClosed. Several threads may read from a subscription; each message goes to one of them.
class Subscriber {
 public:
  /// The next message. Arrays are read-only views of shared memory, which the Item holds. While over half of the
  /// arena's budget is held, the Item has a copy.
  ///   kEmpty: no message in time.  kOverrun: `missed` messages were overwritten before they were read, or given up
  ///   (only with FallBehind::kRaise); the next call reads on.  kClosed: the subscription was closed here or belongs to
  ///   another process, or no process can put any more and all is read; kPeerDied instead if one of those was killed.
  ///   kCorrupt: that message was damaged; the next call reads on.  kOutOfSharedMemory: this process has no memory for
  ///   the message. It is kept: the next call returns it, or a newer one (FallBehind::kLatest). After eight failures
  ///   in a row it is given up, and counts as missed.
  Result<Item> get(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// Waits for one, then takes what is there: 1 to `most` items. An error behind the first of them comes with the next
  /// call.
  Result<std::vector<Item>> get_many(std::size_t most, Timeout timeout = std::nullopt,
                                     const std::stop_token& stop = {}) const;
  /// The next message as bytes (flat.h), as Receiver::get_bytes() has it. kInvalid: it is made of no bytes, or (of
  /// get_struct) has another size than the struct; it is passed, and the error has its ticket.
  Result<FlatItem> get_bytes(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// The same as a struct, copied out.
  template <FlatStruct T>
  Result<T> get_struct(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    T value;
    Status got = get_into(std::as_writable_bytes(std::span<T, 1>(&value, 1)), timeout, stop);
    if (!got) return std::move(got).error();
    return value;
  }

  /// All messages to the end: `for (const Item& item : subscriber)`, as of a Receiver. Throws BadResult for what else
  /// get() says, such as kOverrun; begin() goes on after it.
  using Iterator = detail::StreamIterator<Subscriber>;
  /// The next message; waits for it.
  Iterator begin() const { return Iterator(*this); }
  /// The end of these.
  std::default_sentinel_t end() const noexcept { return {}; }

  /// Messages that it can read now; 0 once it was closed.
  std::uint64_t size() const noexcept;
  /// Whether there are none.
  bool empty() const noexcept { return size() == 0; }
  /// How many it has missed so far; 0 once it was closed.
  std::uint64_t missed() const noexcept;
  /// Readable while there is a message, or nobody is left who puts; owned by this object, and closed with it. To ask
  /// for it is to use the subscription: it is this process's from then on. With several threads that read, a message
  /// may be gone again when it is looked for. The death of who puts is seen by wait(), and by calls that wait. kClosed.
  /// kOs: no descriptor is left. There is no limit of 4,096, as for channels.
  Result<int> fileno() const;

  /// A text by which a process of the same user opens it, with open(). It then lasts until it arrives, this process
  /// ends, or close() is called here. So do not close it while it is in transit. kClosed: closed, or somebody has read
  /// by it.
  Result<std::string> handle() const;
  /// The subscription of such a text. kInvalid for one that is no handle, kIncompatible for that of something else,
  /// kNotFound when nobody has it any more, or somebody has read by it and is gone.
  static Result<Subscriber> open(const std::string& handle);

  /// Ends this process's part by this object and its copies; nobody waits for it any more, unless other processes have
  /// it as well and none of them has read by it. Items and views stay.
  void close();
  /// Whether it was, or was moved from.
  bool closed() const noexcept;

 private:
  friend struct api::SubscriberState;
  friend Result<std::vector<std::size_t>> api::wait_for(std::span<const Subscriber>, Timeout, const std::stop_token&);
  explicit Subscriber(std::shared_ptr<api::SubscriberState> state) noexcept : state_(std::move(state)) {}
  Status get_into(std::span<std::byte> out, Timeout timeout, const std::stop_token& stop) const;
  std::shared_ptr<api::SubscriberState> state_;
};

/// A Broadcast, as this process has it.
class Broadcast {
 public:
  /// Puts a message for all readers and returns its ticket: 0, 1, 2, ... It succeeds without any. The value may be
  /// changed afterwards, but for arrays of new_array(), which are given away. Waits while a blocking reader that lives
  /// is `capacity` messages behind, and for memory.
  ///   kFull: not in time; its text names the process that is waited for.  kTimeout: a stopped process kept the arena's
  ///   lock; its text names that.  kOutOfSharedMemory: only views that somebody holds are in the way.
  ///   kMessageTooLarge: over the arena's budget.  kInvalid, kPickleRefused as of Sender::put().  kClosed: closed here.
  ///   kPeerDied never: a reader that was killed is waited for no more.
  Result<std::uint64_t> put(const Value& value, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// Puts a Cap'n Proto message with root type T, as Sender::put() does.
  template <class T, detail::CapnpBuilder<T> Builder>
  Result<std::uint64_t> put(Builder& builder, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    return detail::put_capnp<T>(builder, [&](const Value& value) { return put(value, timeout, stop); });
  }
  /// Puts all of them, in order. `timeout` is for all. After an error `completed` says how many went; the others did
  /// not. Errors as of put().
  Status put_many(std::span<const Value> values, Timeout timeout = std::nullopt,
                  const std::stop_token& stop = {}) const;
  /// The same of a range of anything that becomes a Value, as Sender::put_many() takes it.
  template <detail::RangeOfValues Range>
  Status put_many(Range&& range, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    return or_out_of_memory([&] {
      const std::vector<Value> values = detail::values_of(std::forward<Range>(range));
      return put_many(std::span<const Value>(values), timeout, stop);
    });
  }
  /// Puts a copy of the bytes, which Python receives as `bytes`, and get_bytes() and get_struct() as what they are.
  Result<std::uint64_t> put_bytes(std::span<const std::byte> bytes, Timeout timeout = std::nullopt,
                                  const std::stop_token& stop = {}) const;
  /// The bytes of a struct.
  template <FlatStruct T>
  Result<std::uint64_t> put_struct(const T& value, Timeout timeout = std::nullopt,
                                   const std::stop_token& stop = {}) const {
    return put_bytes(std::as_bytes(std::span<const T, 1>(&value, 1)), timeout, stop);
  }
  /// A struct in shared memory, to be written there and then put; as Sender::loan(). Waits for memory.
  template <FlatStruct T>
  requires std::is_default_constructible_v<T> Result<Loaned<T>> loan(Timeout timeout = std::nullopt,
                                                                     const std::stop_token& stop = {})
  const { return detail::LoanAccess::make<T>(lend(sizeof(T), timeout, stop)); }
  /// The same of `count` bytes, at least one, which are not initialised.
  Result<LoanedBytes> loan_bytes(std::size_t count, Timeout timeout = std::nullopt,
                                 const std::stop_token& stop = {}) const {
    return detail::LoanAccess::make_bytes(lend(count, timeout, stop), count);
  }
  /// Puts what was lent, without a copy; as Sender::put(). A Sender's loans are kInvalid here, and the other way round.
  template <class T>
  Result<std::uint64_t> put(Loaned<T>&& loan, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    return detail::LoanAccess::put(loan, [&](detail::LoanedBlock* block) { return put_lent(block, timeout, stop); });
  }

  /// A reader. kInvalid: there are 256 already. kOutOfSharedMemory: the arena has no 4 KiB for it now; the call does
  /// not wait for memory. kTimeout: a stopped process, which the error names, has the lock of this Broadcast or of the
  /// arena. kClosed.
  Result<Subscriber> subscribe(const Subscription& how = {}, Timeout timeout = std::nullopt,
                               const std::stop_token& stop = {}) const;

  /// Whether a small message could be put without waiting.
  bool has_space() const noexcept;
  /// Until all blocking readers have read the message with this ticket, and those before it. kTimeout, with the name of
  /// who has not; kClosed.
  Status wait_for_ack(std::uint64_t ticket, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// The same for all that this object, and its copies, have put.
  Status wait_for_all_ack(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// Messages, up to the last that this object has put, that a blocking reader has not read; 0 once it was closed.
  std::uint64_t pending_acks() const noexcept;
  /// Messages that the slowest blocking reader may be behind before put() waits; 0 once it was closed.
  std::uint64_t capacity() const noexcept;
  /// kClosed.
  Result<BroadcastStats> stats() const;

  /// Memory to write in place, which put() refers to: as Arena::new_array().
  Result<ArrayRef> new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout = std::nullopt,
                             const std::stop_token& stop = {}) const;

  /// A text by which a process of the same user opens it; this one keeps it until then. kClosed, kOutOfSharedMemory.
  Result<std::string> handle() const;
  /// The Broadcast of such a text. Errors as of Latest::open().
  static Result<Broadcast> open(const std::string& handle);

  /// Of this process's part by this object and its copies, in putting. Subscribers stay.
  void close();
  /// Whether it was, or was moved from.
  bool closed() const noexcept;

 private:
  friend struct api::BroadcastState;
  explicit Broadcast(std::shared_ptr<api::BroadcastState> state) noexcept : state_(std::move(state)) {}
  Result<detail::Lent> lend(std::size_t bytes, Timeout timeout, const std::stop_token& stop) const;
  Result<std::uint64_t> put_lent(detail::LoanedBlock* block, Timeout timeout, const std::stop_token& stop) const;
  std::shared_ptr<api::BroadcastState> state_;
};

/// As wait() of receivers, of a contiguous range of subscribers. Notices a stop, a close, and the death of who puts
/// within 250 ms.
template <std::convertible_to<std::span<const Subscriber>> Subscribers>
Result<std::vector<std::size_t>> wait(const Subscribers& subscribers, Timeout timeout = std::nullopt,
                                      const std::stop_token& stop = {}) {
  return api::wait_for(subscribers, timeout, stop);
}

/// A new Broadcast. Throws BadResult: kExists for a name in use, kInvalid for numbers that are too large, a capacity of
/// 0, and OnPeerDeath::kEach; kOutOfSharedMemory.
Broadcast make_broadcast(const BroadcastOptions& options = {});

/// The Broadcast that some process of this user named, from C++ or Python. kNotFound for a name that is not in use,
/// kInvalid for one that names something else.
/// Waits up to `timeout` for a process to make it (kTimeout); by default, not at all.
Result<Broadcast> open_broadcast(const std::string& name, Timeout timeout = std::chrono::nanoseconds(0));

/// One that a program in Python put into a message: `item["frames"].as<shmtree::Broadcast>()`. Errors as of
/// Broadcast::open(), and kInvalid for another item.
template <>
struct ItemAs<Broadcast> {
  static Result<Broadcast> make(const Item& item);
};
/// The same of a subscription.
template <>
struct ItemAs<Subscriber> {
  static Result<Subscriber> make(const Item& item);
};

}  // namespace shmtree
