/// @file
/// The newest version of a value, for any number of readers: the weights of a policy, a configuration.
///
///     shmtree::Latest latest = shmtree::make_latest();
///     latest.publish(shmtree::Dict{{"weights", weights}}).value();      // copied once, however many read it
///     shmtree::Version newest = latest.get(0, 3s).value();              // large arrays are views, nothing is copied
///     auto view = newest.value["weights"].array<const float>();
///     newest = latest.get(newest.version).value();                      // waits for a newer one
///
/// The same as shmtree.Latest of Python: by name, by handle, and in messages. Versions are numbered 1, 2, ..., whoever
/// publishes. Readers take no lock and hold nobody up; arrays are read-only, and stay as they are for as long as the
/// Item or a view of array.h is there. Kept are the newest version, `history` older ones, and what somebody holds.
///
/// A process publishes from its first publish() until it closes its last Latest, drops it, or ends. Who waits when
/// nobody is left who publishes is told: kClosed, or kPeerDied with the pids when one of them was killed, until
/// somebody publishes again. A publisher that is killed half-way has published nothing.
///
/// Ownership, timeouts and thread safety are those of pair.h: a Latest is a handle, copies name the same one, any
/// thread may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "shmtree/arena.h"
#include "shmtree/item.h"
#include "shmtree/result.h"
#include "shmtree/value.h"

namespace shmtree {

namespace api {
struct LatestState;
}

/// What make_latest() makes.
struct LatestOptions {
  std::string name{};            ///< for open_latest(), and Latest.open() of Python; an arena of its own unless given
  std::optional<Arena> arena{};  ///< where it lies; without one that of the process, or of the name
  std::uint64_t history = 0;     ///< versions kept besides the newest; at most 65,536
  std::optional<bool> allow_pickle{};  ///< whether Python may publish pickles; by default without a name
  bool exist_ok = false;               ///< as of PairOptions
};

/// What get() returns.
struct Version {
  std::uint64_t version = 0;  ///< its number, from 1 on
  Item value{};               ///< what was published; its arrays are read-only
};

/// Numbers of a Latest.
struct LatestStats {
  std::uint64_t version = 0;      ///< the newest; 0: none yet
  std::uint64_t versions = 0;     ///< how many are there
  std::uint64_t bytes = 0;        ///< of their messages
  std::vector<int> publishers{};  ///< the processes that publish
};

/// A Latest, as this process has it.
class Latest {
 public:
  /// Makes a value the newest version, and returns its number. It is copied, but for arrays of new_array(), which are
  /// given away. Waits for memory: kFull after the timeout; kOutOfSharedMemory, after 1 s, when only views that
  /// somebody holds are in the way. kInvalid, kMessageTooLarge, kPickleRefused as of Sender::put(); kTimeout when a
  /// stopped process keeps the arena's lock; kClosed.
  Result<std::uint64_t> publish(const Value& value, Timeout timeout = std::nullopt) const;
  /// The same, ended by `stop` too (kInterrupted).
  Result<std::uint64_t> publish(const Value& value, Timeout timeout, const std::stop_token& stop) const;

  /// Publishes a Cap'n Proto message with root type T: `publish<Pose>(builder)`. Include capnp.h; see Sender::put().
  template <class T, detail::CapnpBuilder<T> Builder>
  Result<std::uint64_t> publish(Builder& builder, Timeout timeout = std::nullopt,
                                const std::stop_token& stop = {}) const {
    return detail::put_capnp<T>(builder, [&](const Value& value) { return publish(value, timeout, stop); });
  }

  /// The newest version, as soon as its number is above `newer_than`. kEmpty after the timeout; kClosed, kPeerDied.
  Result<Version> get(std::uint64_t newer_than = 0, Timeout timeout = std::nullopt) const;
  /// The same, ended by `stop` too (kInterrupted).
  Result<Version> get(std::uint64_t newer_than, Timeout timeout, const std::stop_token& stop) const;
  /// That version, without waiting. kNotFound when the history does not have it.
  Result<Version> at(std::uint64_t version) const;

  /// The newest version's number: costs one load. 0: none yet, or closed.
  std::uint64_t version() const noexcept;
  /// How many versions are kept besides the newest.
  std::uint64_t history() const noexcept;
  /// kClosed.
  Result<LatestStats> stats() const;

  /// Memory to write in place, which publish() refers to: as Arena::new_array().
  Result<ArrayRef> new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout = std::nullopt) const;

  /// A text by which a process of the same user opens it; this one keeps it until then. kClosed, kOutOfSharedMemory.
  Result<std::string> handle() const;
  /// The Latest of such a text. kInvalid for one that is no handle, kIncompatible for that of something else, kNotFound
  /// when nobody has it any more.
  static Result<Latest> open(const std::string& handle);

  /// Of this process's part by this object and its copies. Items and views stay.
  void close();
  /// Whether it was, or was moved from.
  bool closed() const noexcept;

 private:
  friend struct api::LatestState;
  explicit Latest(std::shared_ptr<api::LatestState> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<api::LatestState> state_;
};

/// A new Latest. Throws BadResult: kExists for a name in use, kInvalid for a history that is too long.
Latest make_latest(const LatestOptions& options = {});

/// The Latest that some process of this user named, from C++ or Python. kNotFound for a name that is not in use,
/// kInvalid for one that names something else.
/// Waits up to `timeout` for a process to make it (kTimeout); by default, not at all.
Result<Latest> open_latest(const std::string& name, Timeout timeout = std::chrono::nanoseconds(0));

/// One that a program in Python put into a message: `item["weights"].as<shmtree::Latest>()`. Errors as of
/// Latest::open(), and kInvalid for another item.
template <>
struct ItemAs<Latest> {
  static Result<Latest> make(const Item& item);
};

}  // namespace shmtree
