// The newest versions of one value in shared memory: published by any process, read by any without a lock. Version v is
// message v - 1 of a ring (broadcast/ring.h) without cursors, which keeps the newest version and `history` older ones.
//
// Thread safety: any thread of any process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "broadcast/publisher.h"

namespace shmtree::latest {

using broadcast::Ring;
using memory::Arena;
using memory::BlockRef;
using platform::WaitContext;

constexpr std::uint64_t kMaxHistory = 1 << 16;

struct Options {
  std::uint64_t history = 0;  // versions besides the newest that are kept for readers
  bool allow_pickle = true;   // for encoders; stored in the ring
};

// A version that this process holds.
struct Held {
  std::uint64_t version = 0;
  memory::Lease block{};
  std::uint64_t bytes = 0;  // bytes of its frame, which is at the beginning of the block
};

class Store {
 public:
  // Creates a Latest. kInvalid for a history over 2^16; other errors as for Arena::allocate().
  static Result<std::shared_ptr<Store>> create(std::shared_ptr<Arena> arena, const Options& options,
                                               const WaitContext& wait);
  // Opens a Latest by its control block. kNotFound if the block is free, kIncompatible if it is anything else.
  static Result<std::shared_ptr<Store>> open(const std::shared_ptr<Arena>& arena, BlockRef block,
                                             const WaitContext& wait);
  explicit Store(std::shared_ptr<Ring> ring) noexcept : publisher_(std::move(ring)) {}

  const std::shared_ptr<Ring>& ring() const noexcept { return publisher_.ring(); }
  const std::shared_ptr<Arena>& arena() const noexcept { return ring()->arena(); }
  BlockRef block() const noexcept { return ring()->block(); }
  std::uint64_t history() const noexcept { return ring()->history() - 1; }
  bool allows_pickle() const noexcept { return ring()->allows_pickle(); }
  // Returns kInvalid, with both values of each option that differs, if the Latest was created with other options.
  Status check_options(const Options& options) const;

  // Publishes a block of kind kPublished with a frame of `bytes`, and returns its version. kTimeout if a stopped
  // process keeps the arena's lock; kInterrupted; kOutOfSharedMemory.
  Result<std::uint64_t> publish(memory::OwnedBlock block, std::uint64_t bytes, const WaitContext& wait);
  // Wakes all waiting threads, which check their conditions again.
  void wake() noexcept { ring()->wake(); }
  // Closes the object, as Publisher::close() does. Later calls of publish() fail, and waiting calls wake up.
  void close(memory::Failure failure = memory::Failure::kNone) noexcept { publisher_.close(failure); }

  // Returns the number of the newest version; 0 if there is none yet.
  std::uint64_t version() const noexcept { return ring()->tail(); }
  // Returns the newest version if it is above `known`, else kEmpty. kCorrupt if its words are damaged.
  Result<Held> newest(std::uint64_t known) const;
  // Returns the version with that number. kNotFound if it is not in the history, or not published yet.
  Result<Held> at(std::uint64_t version) const;
  // Waits for a version above `known`. kEmpty at the deadline; kInterrupted. If no process publishes any more:
  // kPeerDied if publishers were killed, else kClosed.
  Status wait_for_newer(std::uint64_t known, const WaitContext& wait) const;

  // Requests one wake text at `hub`, a hub of this process. The next publication, or the last publisher when it leaves,
  // sends name() there. Returns true if there is a version above `known` already, or if no process publishes any more.
  Result<bool> await_newer(std::uint64_t known, platform::WakeAddress hub);
  bool is_newer(std::uint64_t known) const { return version() > known || !ring()->check_publishers(); }

  // publishers() returns the processes that publish. retained() returns the number of versions that can be read, and
  // the bytes of their frames.
  std::vector<int> publishers() const { return ring()->publishers(); }
  struct Retained {
    std::uint64_t versions = 0, bytes = 0;
  };
  Retained retained() const noexcept;
  std::uint64_t kept_bytes() const noexcept { return ring()->kept_bytes(); }

 private:
  Result<Held> try_hold(std::uint64_t version) const;

  broadcast::Publisher publisher_;
};

}  // namespace shmtree::latest
