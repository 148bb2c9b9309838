/// @file
/// Memory that several channels share, and that arrays may be made in.
///
///     shmtree::Arena arena = shmtree::Arena::create({.max_bytes = 1 << 30}).value();
///     auto [sender, receiver] = shmtree::make_pair({.arena = arena});
///
/// Ownership: an Arena is a handle; copies name the same memory. Errors: results (result.h). Thread safety: every call
/// may be made from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "shmtree/result.h"
#include "shmtree/value.h"

namespace shmtree {

/// How long a call waits: std::nullopt waits for ever, zero not at all.
using Timeout = std::optional<std::chrono::nanoseconds>;

namespace api {
struct ArenaState;
struct ChannelState;
}  // namespace api

/// What Arena::create() makes.
struct ArenaOptions {
  std::uint64_t max_bytes = 0;  ///< budget of all channels and arrays; 0: half of what the machine has left
  std::uint64_t prefault = 0;   ///< bytes to commit at once
  bool huge_pages = false;      ///< ask the system for them
};

/// Bytes of an arena, at some moment.
struct ArenaUsage {
  std::uint64_t max_bytes = 0;        ///< the budget
  std::uint64_t committed_bytes = 0;  ///< pages of shared memory
  std::uint64_t used_bytes = 0;       ///< of those, in messages and arrays
  std::uint64_t held_bytes = 0;       ///< of those, in views
};

/// Memory that several channels share, so that data passes from one to the next without a copy. Anonymous: it goes with
/// the last process that has it, however that ends. One that was moved from has no memory: its usage() and trim() are
/// 0, new_array() is kInvalid, and a pair in it a BadResult.
class Arena {
 public:
  /// kInvalid for a budget under 1 MiB or over 2 TiB; kOs when the system refuses.
  static Result<Arena> create(const ArenaOptions& options = {});
  /// The one that make_pair() uses in this process when it is given none; made on the first call.
  static Result<Arena> shared();

  /// Uninitialised memory of the arena to write in place: `data` may be written (the owner inside keeps it) until it is
  /// put; put() refers to it instead of copying and gives it away, so that it must not be written afterwards. It is
  /// given once: a put of a part of it, one that finds it with another message on its way, a second one, and one by a
  /// forked child, copy. Waits as put() does while undelivered messages hold the budget. kMessageTooLarge,
  /// kOutOfSharedMemory.
  Result<ArrayRef> new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout = std::nullopt) const;
  /// The same, ended by `stop` too (kInterrupted).
  Result<ArrayRef> new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout,
                             const std::stop_token& stop) const;

  /// How much of it is in use now.
  ArenaUsage usage() const;
  /// Gives the pages of free memory back to the system; returns how many bytes.
  std::uint64_t trim() const;

 private:
  friend struct api::ArenaState;
  friend struct api::ChannelState;
  explicit Arena(std::shared_ptr<api::ArenaState> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<api::ArenaState> state_;
};

}  // namespace shmtree
