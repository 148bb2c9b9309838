/// @file
/// A region of shared memory for channels and arrays.
///
///     shmtree::Arena arena = shmtree::Arena::create({.max_bytes = 1 << 30}).value();
///     auto [sender, receiver] = shmtree::make_pair({.arena = arena});
///
/// Ownership: an Arena is a handle. Copies refer to the same memory. Errors: calls return results (result.h). Thread
/// safety: any thread may make any call.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "shmtree/base/result.h"
#include "shmtree/value.h"

namespace shmtree {

/// Maximum time that a call blocks. std::nullopt: blocks indefinitely. Zero: does not block.
using Timeout = std::optional<std::chrono::nanoseconds>;

namespace api {
struct ArenaState;
struct ChannelState;
}  // namespace api

/// Options for Arena::create().
struct ArenaOptions {
  /// Budget in bytes of all channels and arrays. 0: half of the memory that is available.
  std::uint64_t max_bytes = 0;
  std::uint64_t prefault = 0;  ///< Number of bytes to commit at creation.
  bool huge_pages = false;     ///< Requests huge pages from the system.
  /// Time for which a call of this process that waits at an end in the arena polls before it sleeps
  /// (Sender::set_spin()). If it is not set, the value of the environment variable SHMTREE_SPIN in seconds, or 0
  /// without that variable.
  std::optional<std::chrono::nanoseconds> spin{};
};

/// Memory of an arena, in bytes, at one moment.
struct ArenaUsage {
  std::uint64_t max_bytes = 0;        ///< The budget.
  std::uint64_t committed_bytes = 0;  ///< Pages of shared memory that are committed.
  std::uint64_t used_bytes = 0;       ///< Part of `committed_bytes` in use by messages and arrays.
  std::uint64_t held_bytes = 0;       ///< Part of `used_bytes` that views keep in use.
};

/// Memory that several channels share, so that data passes from one to the next without a copy. An arena is anonymous:
/// its memory is freed when the last attached process exits or dies. A moved-from Arena refers to no memory: usage()
/// and trim() return 0, new_array() returns kInvalid, and making a pair in it throws BadResult.
class Arena {
 public:
  /// Creates an arena. kInvalid: the budget is below 1 MiB or above 2 TiB, `spin` is negative, or SHMTREE_SPIN is not a
  /// number of seconds. kOs: a system call failed.
  static Result<Arena> create(const ArenaOptions& options = {});
  /// Returns the default arena of this process, which make_pair() uses unless PairOptions::arena is set. The first call
  /// creates it.
  static Result<Arena> shared();

  /// Allocates an uninitialised array in the arena, to be filled in place before a put. You may write to `data` until
  /// you put the array; the result's `owner` keeps the memory alive. A put transfers the memory to the receivers
  /// without a copy, so do not write to it afterwards. Each array is transferred at most once. A put copies the array
  /// instead if the value contains only a part of it, or if another put of the array is in progress or has succeeded. A
  /// put by a forked child copies, too.
  ///
  /// Blocks while undelivered messages use up the budget.
  /// - kFull: the timeout expired.
  /// - kMessageTooLarge: the array exceeds the budget.
  /// - kOutOfSharedMemory: only views hold the memory, or the machine has none.
  Result<NewArray> new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout = std::nullopt) const;
  /// Does the same. `stop` also ends the wait (kInterrupted).
  Result<NewArray> new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout,
                             const std::stop_token& stop) const;

  /// Returns the current use of the arena.
  ArenaUsage usage() const;
  /// Returns unused pages to the system. The result is the number of bytes that were returned.
  std::uint64_t trim() const;

 private:
  friend struct api::ArenaState;
  friend struct api::ChannelState;
  explicit Arena(std::shared_ptr<api::ArenaState> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<api::ArenaState> state_;
};

}  // namespace shmtree
