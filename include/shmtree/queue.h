/// @file
/// A queue: both ends of a channel in one object. The stream does not end while a process has both open.
///
///     shmtree::Queue queue = shmtree::make_queue({.capacity = 8});
///     queue.put(shmtree::Dict{{"job", 1}}).value();
///     shmtree::Item item = queue.get().value();
///     queue.task_done().value();                      // now a join() that waits for all tasks returns
///
/// Interoperates with shmtree.Queue, JoinableQueue and SimpleQueue of Python, by name and by handle. Any number of
/// processes may put and get. Unlike the stream of a pair, a queue does not end when no other process has it open:
/// get() waits for new processes. The death of a process is not an error, unless the queue has OnPeerDeath::kRaise.
/// Only shutdown() ends a queue. Ownership, timeouts, errors and thread safety are those of pair.h. A Queue is a
/// handle: copies refer to the same queue.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "shmtree/arena.h"
#include "shmtree/base/result.h"
#include "shmtree/item.h"
#include "shmtree/pair.h"
#include "shmtree/value.h"

namespace shmtree {

/// Options for make_queue().
struct QueueOptions {
  std::uint64_t capacity = 0;   ///< Messages in the queue before put() blocks. 0: unlimited.
  std::uint64_t max_bytes = 0;  ///< Bytes of the messages, see PairOptions. 0: only the arena's budget limits them.
  std::string name{};  ///< Name for open_queue() and Python's Queue.open(). Has its own arena unless `arena` is set.
  /// Arena to use. By default an arena of its own if `name` is set, otherwise Arena::shared().
  std::optional<Arena> arena{};
  std::optional<bool> allow_pickle{};  ///< See PairOptions.
  bool portable = false;               ///< See PairOptions.
  bool exist_ok = false;               ///< See PairOptions.
  /// Effect of killed processes. With kRaise, get() of an empty queue returns kPeerDied if a process that could put was
  /// killed, and none is left. put() into a full queue and join() return it likewise for processes that could get. A
  /// process that has only called get() does not count as one that could put, and the reverse. Calls return the error
  /// until a new process has the queue. kEach is refused with kInvalid.
  OnPeerDeath on_peer_death = OnPeerDeath::kWait;
};

/// A handle of a queue.
class Queue {
 public:
  /// Puts a message and returns its ticket. Errors are those of Sender::put(), and kShutDown after shutdown().
  Result<std::uint64_t> put(const Value& value, Timeout timeout = std::nullopt) const {
    return sender_.put(value, timeout);
  }
  /// Does the same. `stop` also ends the wait (kInterrupted).
  Result<std::uint64_t> put(const Value& value, Timeout timeout, const std::stop_token& stop) const {
    return sender_.put(value, timeout, stop);
  }
  /// Puts a dict: `put({{"obs", obs}, {"reward", 1.0}})`.
  Result<std::uint64_t> put(std::initializer_list<Entry> entries, Timeout timeout = std::nullopt,
                            const std::stop_token& stop = {}) const {
    return or_out_of_memory([&] { return put(Value(Dict(entries)), timeout, stop); });
  }
  /// Forwards a received Item. Copies its arrays only if Sender::put() of the Item would.
  template <std::same_as<Item> Moved>
  Result<std::uint64_t> put(Moved&& item, Timeout timeout = std::nullopt) const {
    return sender_.put(std::forward<Moved>(item), timeout);
  }
  /// Puts a Cap'n Proto message with root type T, as Sender::put() does.
  template <class T, detail::CapnpBuilder<T> Builder>
  Result<std::uint64_t> put(Builder& builder, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    return sender_.put<T>(builder, timeout, stop);
  }
  /// Puts a range of Values, or of anything that converts to one. See Sender::put_many().
  template <class Range>
  Status put_many(Range&& range, Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const {
    return sender_.put_many(std::forward<Range>(range), timeout, stop);
  }
  /// Receives the next message. Returns the errors of Receiver::get(), and kShutDown if the queue was shut down, is
  /// empty, and no other process has an unacked message, which it could still return to the queue.
  Result<Item> get(Timeout timeout = std::nullopt) const { return receiver_.get(timeout); }
  /// Does the same. `stop` also ends the wait (kInterrupted).
  Result<Item> get(Timeout timeout, const std::stop_token& stop) const { return receiver_.get(timeout, stop); }
  /// Waits for one message, then receives those available: 1 to `most` items in total.
  Result<std::vector<Item>> get_many(std::size_t most, Timeout timeout = std::nullopt) const {
    return receiver_.get_many(most, timeout);
  }
  /// Does the same, and waits for more messages until it has `most`, for up to `within` after the first.
  Result<std::vector<Item>> get_many(std::size_t most, Timeout timeout, std::chrono::nanoseconds within,
                                     const std::stop_token& stop = {}) const {
    return receiver_.get_many(most, timeout, within, stop);
  }
  /// Iterates over all messages, `for (const Item& item : queue)`, until get() would return kShutDown or kClosed.
  Receiver::Iterator begin() const { return receiver_.begin(); }
  /// Returns the end of the iteration.
  std::default_sentinel_t end() const noexcept { return {}; }

  /// Reports one received message as done. kInvalid: no other message is unfinished (dead letters need no call).
  /// kClosed: this process has no end of the queue any more.
  Status task_done() const;
  /// Blocks until every message that was put is done or a dead letter. Continues to wait after close() while another
  /// process has the queue open. If a process is killed between get() and task_done(), its message stays unfinished.
  /// Use receiver().take() and ack() instead, which redeliver it to another process.
  /// - kTimeout: the timeout expired.
  /// - kClosed: no process has the queue, or the call began after this process's last close().
  /// - kPeerDied: messages are left, and a queue with OnPeerDeath::kRaise has no other process that could get them.
  Status join(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// Returns the number of messages that are neither done nor dead letters; 0 if this process has no end any more.
  std::uint64_t unfinished_tasks() const noexcept;
  /// Ends the queue in all processes. put() returns kShutDown from now on, and get() once the queue is empty.
  /// `immediate` drops the messages in the queue, and those that are returned later. join() counts both as done.
  Status shutdown(bool immediate = false) const;

  /// Returns the dead letters, like Receiver::dead_letters(): messages that eight receivers in a row had no memory to
  /// build. They count as done for join(). ack() drops a message without task_done(); requeue() makes it unfinished
  /// again.
  Result<std::vector<TakenItem>> dead_letters() const { return receiver_.dead_letters(); }

  /// Returns the number of messages in the queue. This is exact, like the two calls below.
  std::uint64_t size() const { return receiver_.size(); }
  /// True if the queue has no message.
  bool empty() const { return receiver_.empty(); }
  /// True if the queue has as many messages as its capacity; never without a capacity.
  bool full() const;
  /// Returns the capacity: put() blocks while the queue has that many messages. 0: unlimited, or this process has no
  /// end any more.
  std::uint64_t capacity() const noexcept;
  /// Returns the statistics of the channel; kClosed after close().
  Result<ChannelStats> stats() const { return receiver_.stats(); }

  /// Returns an end, for calls that only ends have: those for bytes, structs and loans, take(), wait() and fileno().
  /// Closing the queue closes them. handle() of an end returns a handle of the queue.
  const Sender& sender() const& noexcept { return sender_; }
  /// See sender().
  const Receiver& receiver() const& noexcept { return receiver_; }
  /// Moves the end out of a temporary.
  Sender sender() && noexcept { return std::move(sender_); }
  /// The same.
  Receiver receiver() && noexcept { return std::move(receiver_); }

  /// Returns a text with which a process of the same user opens the queue, with open() or Queue.open_handle() of
  /// Python. Errors and lifetime are those of Sender::handle().
  Result<std::string> handle() const { return receiver_.handle(); }
  /// Opens the queue of a handle. Returns kInvalid if the text is not a handle, or if it is that of an end of a
  /// pair. Returns kNotFound if no process has the queue any more.
  static Result<Queue> open(const std::string& handle);

  /// Closes the queue in this process, with all copies of this handle. The messages stay for other processes.
  void close();
  /// See Sender::set_spin(). Applies to puts and gets.
  Status set_spin(std::chrono::nanoseconds spin) const {
    Status set = sender_.set_spin(spin);
    return set ? receiver_.set_spin(spin) : std::move(set);
  }
  /// See Sender::set_spin().
  std::chrono::nanoseconds spin() const noexcept { return receiver_.spin(); }
  /// True if this object was closed or moved from.
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

/// Makes a queue. Throws BadResult like make_pair().
Queue make_queue(const QueueOptions& options = {});

/// Opens the queue that a process of this user has named, in C++ or Python. Waits up to `timeout` for a process to make
/// it (kTimeout); by default it does not wait. Returns kNotFound if the name is not in use, and kInvalid if it belongs
/// to another kind of object.
Result<Queue> open_queue(const std::string& name, Timeout timeout = std::chrono::nanoseconds(0));

}  // namespace shmtree
