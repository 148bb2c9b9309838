// The newest versions of one value in shared memory: published by any process, read by any without a lock.
// docs/latest-layout.md has the order of stores.
//
// Invariants:
//   - A version that can be read is whole, and stays so for as long as it is held.
//   - Versions are numbered one after the other, whoever publishes; who was killed half-way changed nothing.
//   - A version's block is freed only after its entry was cleared, with a full fence between that and the look at the
//     holders; readers hold it first and look at the entry again.
//   - Nothing here is done with a lock held but a few stores under the arena's.
//
// Thread safety: any thread of any process.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "latest/layout.h"
#include "memory/reference_places.h"

namespace shmtree::latest {

using memory::Arena;
using memory::BlockRef;
using platform::WaitContext;

struct Options {
  std::uint64_t history = 0;  // versions besides the newest that are kept for readers
  bool allow_pickle = true;   // for those who encode; kept with it
};

// A version that this process holds.
struct Held {
  std::uint64_t version = 0;
  memory::Lease block{};
  std::uint64_t bytes = 0;  // of its frame, at the block's beginning
};

class Store {
 public:
  // kInvalid for a history over 2^16; errors as of Arena::allocate().
  static Result<std::shared_ptr<Store>> create(std::shared_ptr<Arena> arena, const Options& options,
                                               const WaitContext& wait);
  // One that lives, and this process's own object where it has it: kNotFound when it does not live, kIncompatible for
  // anything else.
  static Result<std::shared_ptr<Store>> open(const std::shared_ptr<Arena>& arena, BlockRef block,
                                             const WaitContext& wait);
  ~Store();

  const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }
  BlockRef block() const noexcept { return control_.ref(); }
  std::uint64_t history() const noexcept { return entries_ - 2; }
  bool allows_pickle() const noexcept { return (platform::load_once(header().flags) & kPickles) != 0; }

  // kInvalid, with the values of both, if it was made with others.
  Status check_options(const Options& options) const;

  // A block for a version; errors as of Arena::allocate().
  Result<memory::OwnedBlock> allocate(std::uint64_t bytes, const WaitContext& wait) {
    return arena_->allocate(bytes, memory::BlockKind::kPublished, wait);
  }
  // Publishes what was written to such a block, a frame of `bytes`, and returns its version. kTimeout when a stopped
  // process keeps the arena's lock; kInterrupted; kOutOfSharedMemory.
  Result<std::uint64_t> publish(memory::OwnedBlock block, std::uint64_t bytes, const WaitContext& wait);
  // This process publishes no more, until it does: who waits may be told of the end.
  void leave() noexcept;
  // Wakes whoever waits, to look again.
  void wake() noexcept;
  // leave() of all that this process has, which is about to exit.
  static void leave_all() noexcept;

  // The newest version's number; 0: none yet.
  std::uint64_t version() const noexcept { return platform::load_acquire(header().latest); }
  // The newest version, if it is above `known`; otherwise kEmpty. kCorrupt when its words are damaged.
  Result<Held> newest(std::uint64_t known) const;
  // That version; kNotFound when it is not in the history, or not there yet.
  Result<Held> at(std::uint64_t version) const;
  // Waits for a version above `known`. kEmpty, kInterrupted; kClosed when nobody publishes any more, kPeerDied when
  // one of those who did was killed.
  Status wait_for_newer(std::uint64_t known, const WaitContext& wait) const;
  // What wait_for_newer() would say at once of those who publish.
  Status check_publishers() const { return publishing().check(version() != 0); }

  // The processes that publish, and the versions that are there, with the bytes of their frames.
  std::vector<int> publishers() const { return publishing().pids(); }
  struct Kept {
    std::uint64_t versions = 0, bytes = 0;
  };
  Kept kept() const noexcept;
  std::uint64_t kept_bytes() const noexcept { return kept().bytes; }

  // Names the first invariant that does not hold, while nobody else is at work; empty when all do. For tests.
  std::string check() const;

 private:
  Store(std::shared_ptr<Arena> arena, memory::Lease control, std::uint64_t entries);
  static std::shared_ptr<Store> known(std::shared_ptr<Store> made);

  LatestHeader& header() const noexcept { return *reinterpret_cast<LatestHeader*>(control_.data()); }
  std::uint64_t place_of(std::uint64_t version) const noexcept { return version % entries_; }
  bool is_in_window(std::uint64_t version, std::uint64_t newest) const noexcept {
    return version != 0 && version <= newest && newest - version <= history();
  }
  Result<Held> try_hold(std::uint64_t version) const;
  memory::Publishers publishing() const noexcept { return {arena_->participants(), header().publishers}; }
  memory::ReferencePlaces references() const noexcept { return {*arena_, list_}; }

  // Under the arena lock.
  void repair() noexcept;
  void enter(std::uint64_t version, BlockRef block, std::uint64_t bytes) noexcept;
  BlockRef remove(std::uint64_t place) noexcept;

  const std::shared_ptr<Arena> arena_;
  const memory::Lease control_;
  const std::uint64_t entries_;
  WindowEntry* const window_;
  memory::ListEntry* const list_;
  std::atomic<bool> has_published_{false};  // by this object, so that others of the process need not let go for it
};

}  // namespace shmtree::latest
