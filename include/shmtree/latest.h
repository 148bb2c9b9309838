/// @file
/// The newest version of a value, for any number of readers: the weights of a policy, or a configuration.
///
///     shmtree::Latest latest = shmtree::make_latest();
///     latest.publish(shmtree::Dict{{"weights", weights}}).value();      // copied once, however many read it
///     shmtree::Version newest = latest.get(0, 3s).value();              // large arrays are views, nothing is copied
///     auto view = newest.value["weights"].array<const float>();
///     newest = latest.get(newest.version).value();                      // waits for a newer one
///
/// Interoperates with shmtree.Latest of Python: by name, by handle, and inside messages. Versions are numbered 1, 2,
/// ..., across all publishers. Readers take no lock and block no other process. Arrays are read-only, and do not change
/// while the Item, or a view of array.h, exists. A Latest keeps the newest version, `history` older ones, and those
/// that readers hold.
///
/// A process is a publisher from its first publish() until it closes or drops its last Latest, or exits. When no
/// publisher is left, waiting readers get kClosed, or kPeerDied with the process ids if a publisher was killed. Both
/// errors last until a process publishes again. Before the first version, the process that made the Latest counts as a
/// publisher. So does each process that opened it, unless it waits for a version itself. A publisher that is killed
/// during publish() has published nothing.
///
/// Ownership, timeouts and thread safety are those of pair.h. A Latest is a handle: copies refer to the same object,
/// and any thread may use it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "shmtree/arena.h"
#include "shmtree/base/result.h"
#include "shmtree/item.h"
#include "shmtree/value.h"

namespace shmtree {

namespace api {
struct LatestState;
}

/// Options for make_latest().
struct LatestOptions {
  std::string name{};  ///< Name for open_latest() and Python's Latest.open(). Has its own arena unless `arena` is set.
  /// Arena to use. By default an arena of its own if `name` is set, otherwise Arena::shared().
  std::optional<Arena> arena{};
  std::uint64_t history = 0;           ///< Versions kept besides the newest, at most 65,536.
  std::optional<bool> allow_pickle{};  ///< Allows Python to publish pickles. By default only without a name.
  bool exist_ok = false;               ///< See PairOptions.
};

/// The result of Latest::get().
struct Version {
  std::uint64_t version = 0;  ///< Number of the version, from 1.
  Item value{};               ///< The published value. Its arrays are read-only.
};

/// Statistics of a Latest.
struct LatestStats {
  std::uint64_t version = 0;      ///< Number of the newest version. 0: none yet.
  std::uint64_t versions = 0;     ///< Number of versions kept.
  std::uint64_t bytes = 0;        ///< Bytes of the kept versions.
  std::vector<int> publishers{};  ///< Process ids of the publishers.
};

/// A handle of a Latest, for publishers and readers.
class Latest {
 public:
  /// Makes a value the newest version, and returns its number. The value is copied, except arrays of new_array(), which
  /// are transferred. Waits for memory.
  /// - kFull: the timeout expired.
  /// - kOutOfSharedMemory: for 1 s, only views that processes hold used up the memory.
  /// - kInvalid, kMessageTooLarge, kPickleRefused: see Sender::put().
  /// - kTimeout: a stopped process holds the arena's lock.
  /// - kClosed: closed here.
  Result<std::uint64_t> publish(const Value& value, Timeout timeout = std::nullopt) const;
  /// Does the same. `stop` also ends the wait (kInterrupted).
  Result<std::uint64_t> publish(const Value& value, Timeout timeout, const std::stop_token& stop) const;
  /// Publishes a dict: `publish({{"obs", obs}, {"reward", 1.0}})`.
  Result<std::uint64_t> publish(std::initializer_list<Entry> entries, Timeout timeout = std::nullopt,
                                const std::stop_token& stop = {}) const {
    return or_out_of_memory([&] { return publish(Value(Dict(entries)), timeout, stop); });
  }

  /// Publishes a Cap'n Proto message with root type T: `publish<Pose>(builder)`. Include capnp.h; see Sender::put().
  template <class T, detail::CapnpBuilder<T> Builder>
  Result<std::uint64_t> publish(Builder& builder, Timeout timeout = std::nullopt,
                                const std::stop_token& stop = {}) const {
    return detail::put_capnp<T>(builder, [&](const Value& value) { return publish(value, timeout, stop); });
  }

  /// Waits until the number of the newest version is above `newer_than`, and returns that version.
  /// - kEmpty: the timeout expired.
  /// - kClosed: closed here, or no publisher is left. In the second case kPeerDied instead if a publisher was killed.
  Result<Version> get(std::uint64_t newer_than = 0, Timeout timeout = std::nullopt) const;
  /// Does the same. `stop` also ends the wait (kInterrupted).
  Result<Version> get(std::uint64_t newer_than, Timeout timeout, const std::stop_token& stop) const;
  /// Returns the version with this number, without waiting. kNotFound: it is not in the history.
  Result<Version> at(std::uint64_t version) const;

  /// Returns the number of the newest version, at the cost of one load. 0: none yet, or closed.
  std::uint64_t version() const noexcept;
  /// Returns the number of versions kept besides the newest.
  std::uint64_t history() const noexcept;
  /// Returns the statistics; kClosed after close().
  Result<LatestStats> stats() const;

  /// Allocates an array to be filled in place, which publish() refers to. See Arena::new_array().
  Result<NewArray> new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout = std::nullopt) const;

  /// Returns a text with which a process of the same user opens this Latest. The Latest stays alive until that
  /// process has opened it, even if you close this object earlier. Returns kClosed after close(), and
  /// kOutOfSharedMemory if there is no memory to record the transfer.
  Result<std::string> handle() const;
  /// Opens the Latest of a handle.
  /// - kInvalid: the text is not a handle.
  /// - kIncompatible: the handle is of another kind of object.
  /// - kNotFound: no process is attached any more.
  static Result<Latest> open(const std::string& handle);

  /// Closes this object and its copies; the process stops being a publisher through them. Items and views stay valid.
  void close();
  /// Closes like close(), and reports a failure, such as an exception that this process has caught. Once no publisher
  /// is left, readers get kPeerDied with this process's id instead of kClosed.
  void fail();
  /// See Sender::set_spin().
  Status set_spin(std::chrono::nanoseconds spin) const;
  /// See Sender::set_spin().
  std::chrono::nanoseconds spin() const noexcept;
  /// True if this object was closed or moved from.
  bool closed() const noexcept;

 private:
  friend struct api::LatestState;
  explicit Latest(std::shared_ptr<api::LatestState> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<api::LatestState> state_;
};

/// Makes a Latest. Throws BadResult: kExists if the name is in use, and kInvalid if the history is too long.
Latest make_latest(const LatestOptions& options = {});

/// Opens the Latest that a process of this user has named, in C++ or Python. Waits up to `timeout` for a process to
/// make it (kTimeout); by default it does not wait. Returns kNotFound if the name is not in use, and kInvalid if it
/// belongs to another kind of object.
Result<Latest> open_latest(const std::string& name, Timeout timeout = std::chrono::nanoseconds(0));

/// Opens a Latest that a Python program has put into a message: `item["weights"].as<shmtree::Latest>()`. Errors are
/// those of Latest::open(), and kInvalid for another item.
template <>
struct ItemAs<Latest> {
  static Result<Latest> make(const Item& item);
};

}  // namespace shmtree
