/// @file
/// A queue: both ends of a channel in one object. It has no end of stream while a process has both halves open.
///
///     shmtree::Queue queue = shmtree::make_queue({.capacity = 8});
///     queue.put(shmtree::Dict{{"job", 1}}).value();
///     shmtree::Item item = queue.get().value();
///     queue.task_done().value();                      // then join() of whoever waits for all of them returns
///
/// The same queues as shmtree.Queue, JoinableQueue and SimpleQueue of Python: by name, and by handle. Any number of
/// processes put and get. Unlike the stream of a pair it goes on when nobody else has it, so that get() waits for who
/// comes, and nobody's death is an error; shutdown() is what ends it.
/// Ownership, timeouts, errors and thread safety are those of pair.h: a Queue is a handle, copies name the same queue.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "shmtree/arena.h"
#include "shmtree/item.h"
#include "shmtree/pair.h"
#include "shmtree/result.h"
#include "shmtree/value.h"

namespace shmtree {

/// What make_queue() makes.
struct QueueOptions {
  std::uint64_t capacity = 0;    ///< messages in it before put() waits; 0 is unlimited
  std::uint64_t max_bytes = 0;   ///< bytes of them, as of PairOptions; 0 is no limit but the arena's
  std::string name{};            ///< for open_queue(), and Queue.open() of Python; an arena of its own unless given
  std::optional<Arena> arena{};  ///< where messages lie; without one that of the process, or of the name
  std::optional<bool> allow_pickle{};  ///< as of PairOptions
  bool portable = false;               ///< as of PairOptions
  bool exist_ok = false;               ///< as of PairOptions
};

/// A queue, as this process has it.
class Queue {
 public:
  /// Puts a message and returns its ticket. Errors as of Sender::put(); kShutDown after shutdown().
  Result<std::uint64_t> put(const Value& value, Timeout timeout = std::nullopt) const {
    return sender_.put(value, timeout);
  }
  /// The same, ended by `stop` too (kInterrupted).
  Result<std::uint64_t> put(const Value& value, Timeout timeout, const std::stop_token& stop) const {
    return sender_.put(value, timeout, stop);
  }
  /// Sends a received Item on, without a copy of its arrays where Sender::put() of one makes none.
  template <std::same_as<Item> Moved>
  Result<std::uint64_t> put(Moved&& item, Timeout timeout = std::nullopt) const {
    return sender_.put(std::forward<Moved>(item), timeout);
  }
  /// Puts a Cap'n Proto message with root type T, as Sender::put() does.
  template <class T, detail::CapnpBuilder<T> Builder>
  Result<std::uint64_t> put(Builder& builder, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    return sender_.put<T>(builder, timeout, stop);
  }
  /// Puts a range of Values, or of what becomes some; as Sender::put_many().
  template <class Range>
  Status put_many(Range&& range, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    return sender_.put_many(std::forward<Range>(range), timeout, stop);
  }
  /// The next message. Errors as of Receiver::get(); kShutDown when the queue was shut down and nothing is left: it is
  /// empty, and no other process has taken what it may give back.
  Result<Item> get(Timeout timeout = std::nullopt) const { return receiver_.get(timeout); }
  /// The same, ended by `stop` too (kInterrupted).
  Result<Item> get(Timeout timeout, const std::stop_token& stop) const { return receiver_.get(timeout, stop); }
  /// Waits for one, then takes what is there: 1 to `most` items.
  Result<std::vector<Item>> get_many(std::size_t most, Timeout timeout = std::nullopt) const {
    return receiver_.get_many(most, timeout);
  }
  /// All messages, `for (const Item& item : queue)`, until it is shut down and nothing is left, or closed here.
  Receiver::Iterator begin() const { return receiver_.begin(); }
  /// The end of these.
  std::default_sentinel_t end() const noexcept { return {}; }

  /// Reports one received message as done. kInvalid if no other message is unfinished (rejected ones need no call);
  /// kClosed if this process has no end of the queue any more.
  Status task_done() const;
  /// Blocks until every message that was put is done or rejected. kTimeout. After close() it goes on as long as
  /// another process has the queue; kClosed if none has, or if it begins after this process's last close(). If a
  /// process is killed between get() and task_done(), its message stays unfinished; take() of receiver() with ack()
  /// gives it to another process instead.
  Status join(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// Number of messages that were put and are neither done nor rejected; 0 if this process has no end any more.
  std::uint64_t unfinished_tasks() const noexcept;
  /// Ends the queue in all processes: put() is kShutDown from now on, get() as soon as nothing is left. `immediate`
  /// drops what is in it, and what is given back later; both count as dealt with for join().
  Status shutdown(bool immediate = false) const;

  /// The messages that were given up because eight receivers in a row had no memory to build them, as
  /// Receiver::rejected() returns them. They count as done for join(). ack() drops a message without task_done();
  /// requeue() makes it an unfinished one again.
  Result<std::vector<TakenItem>> rejected() const { return receiver_.rejected(); }

  /// Messages in it; exact, as are the two below.
  std::uint64_t size() const { return receiver_.size(); }
  /// Whether there is none.
  bool empty() const { return receiver_.empty(); }
  /// Whether there are as many as its capacity; never without one.
  bool full() const;
  /// Messages that it takes before put() waits; 0 is no limit, or that this process has no end any more.
  std::uint64_t capacity() const noexcept;
  /// Numbers of the channel. kClosed.
  Result<ChannelStats> stats() const { return receiver_.stats(); }

  /// The ends by themselves, for what only they have: bytes, structs and loans; take(), wait(), fileno(). Closing the
  /// queue closes them; their handles are the queue's.
  const Sender& sender() const noexcept { return sender_; }
  /// The other one.
  const Receiver& receiver() const noexcept { return receiver_; }

  /// A text by which a process of the same user opens the queue, with open() or Queue.open_handle() of Python. Errors
  /// and life as of Sender::handle().
  Result<std::string> handle() const { return receiver_.handle(); }
  /// The queue of such a text. kInvalid for one that is no handle, or that of a pair's end; kNotFound when nobody has
  /// the queue any more.
  static Result<Queue> open(const std::string& handle);

  /// Of this process, and of all copies: what was put stays for the others.
  void close();
  /// Whether it was, or was moved from.
  bool closed() const noexcept { return receiver_.closed(); }

 private:
  friend Queue make_queue(const QueueOptions& options);
  friend Result<Queue> open_queue(const std::string& name, Timeout timeout);
  friend struct ItemAs<Queue>;
  Queue(Sender sender, Receiver receiver) noexcept : sender_(std::move(sender)), receiver_(std::move(receiver)) {}
  static Result<Queue> with_sender(Result<std::shared_ptr<api::ChannelState>> receiving);
  Sender sender_;
  Receiver receiver_;
};

/// A new queue. Throws BadResult as make_pair() does.
Queue make_queue(const QueueOptions& options = {});

/// The queue that some process of this user named, from C++ or Python. kNotFound for a name that is not in use,
/// kInvalid for one that names something else.
/// Waits up to `timeout` for a process to make it (kTimeout); by default, not at all.
Result<Queue> open_queue(const std::string& name, Timeout timeout = std::chrono::nanoseconds(0));

}  // namespace shmtree
