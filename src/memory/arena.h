// An arena: one shared-memory file, and what a process does with it. Arena is a facade of its parts. Each part uses
// only the parts above it:
//
//   Mapping        the pieces of the file that this process has mapped        mapping.h
//   BlockTable     the block table, with checks against damaged words         mapping.h
//   Participants   attached processes, and those that died                    participants.h
//   TransferTable  objects in transit between processes                       transfer_table.h
//   WakeTable      addresses of the participants' wake pipes                  wake_table.h
//   RobustLock     a lock that outlives its owners                            robust_lock.h
//   HeldBytes      a sum that processes update without a lock                 block_pool.h
//   BlockPool      the free blocks, and the byte counts                       block_pool.h
//   Reclaimer      decides when a block is freed, and frees it                reclaimer.h
//   ReconcilePass  one pass of recovery                                       reconciler.h
//   Reconciler     locks, and an identity, with repairs first                 reconciler.h
//   HolderTable    which participant holds which block                        holder_table.h
//   Inspector      reports the state                                          inspector.h
//   Allocator      allocates blocks within the budget, and waits for memory   allocator.h
//
// Thread safety: every method may be called from any thread. An Arena object is one process's view of the file; a
// process has at most one per file (attach() finds it), and forked children inherit theirs.
//
// The order of stores makes a kill at any instruction harmless (docs/internals/recovery.md has the whole argument):
//   allocate   word := writing(me), then `committed` is raised, then pages are allocated
//   publish    the channel stores the block into its window; then word: writing -> live (by compare-and-swap, since a
//              receiver may have done it already and even have released the block)
//   receive    holder bit, then the window moves on
//   release    holder bit cleared, then a process that has the arena lock frees the block if nothing else keeps it
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "memory/allocator.h"
#include "memory/holder_table.h"
#include "memory/layout.h"
#include "memory/transfer_table.h"
#include "memory/wake_table.h"
#include "platform/spin.h"
#include "platform/wait_policy.h"

namespace shmtree::memory {

struct ArenaOptions {
  std::uint64_t max_bytes = 0;  // budget for all blocks; 0: half of what the machine and its control groups have left
  std::uint64_t prefault = 0;   // bytes to commit and touch at once
  bool huge_pages = false;
  std::uint64_t page_bytes = 0;  // page size, for tests; 0: that of the system
};

class Arena;

// Owns one pin of a block for this process. Move-only. The block may be freed once no process has a Lease of it.
class Lease {
 public:
  Lease() noexcept = default;
  Lease(Lease&& other) noexcept { take(other); }
  Lease& operator=(Lease&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  ~Lease() { reset(); }

  bool valid() const noexcept { return arena_ != nullptr; }
  const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }
  BlockRef ref() const noexcept { return ref_; }
  std::byte* data() const noexcept { return data_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  // Returns true if a child that was forked since the lease was made may have the block as well. Call it before the
  // block is handed to another owner.
  bool is_inherited() const noexcept;
  void reset() noexcept;

 private:
  friend class Arena;
  void take(Lease& other) noexcept {
    arena_ = std::move(other.arena_);
    ref_ = other.ref_;
    data_ = other.data_;
    bytes_ = other.bytes_;
    fork_epoch_ = other.fork_epoch_;
    forks_ = other.forks_;
  }

  std::shared_ptr<Arena> arena_;
  BlockRef ref_{};
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint32_t fork_epoch_ = 0;  // HolderTable::fork_epoch() when it was made
  std::uint32_t forks_ = 0;       // HolderTable::forks() when it was made
};

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  // Creates an arena. Code::kInvalid for a budget under 1 MiB or over 2 TiB, or a wrong SHMTREE_SPIN. Code::kOs for an
  // error of the system.
  static Result<std::shared_ptr<Arena>> create(const ArenaOptions& options);
  // Attaches to the arena behind a descriptor of any file. Code::kIncompatible unless the file is a sealed arena of
  // this version. Returns the process's existing Arena of that file if there is one. Otherwise the process attaches, as
  // the participant `reserved` if that is given, and consumes it.
  static Result<std::shared_ptr<Arena>> attach(platform::UniqueFd fd, ReservedSlot* reserved = nullptr);
  // The arena's header, read without attaching. Code::kIncompatible as attach().
  struct Head {
    unsigned char uuid[16];
    std::uint64_t max_bytes, flags;
  };
  static Result<Head> read_head(int fd);
  // Returns this process's arena with that uuid, or null.
  static std::shared_ptr<Arena> find(const unsigned char uuid[16]);
  // Sets the name of this process in reports, in all its arenas.
  static void set_process_name(std::string_view name) noexcept;
  ~Arena();

  // Returns the number of the descriptor by which other processes open the file. checked_fd() checks the descriptor
  // first, as CheckedFd::get().
  int fd() const noexcept { return mapping_->file().number(); }
  Result<int> checked_fd() const { return mapping_->file().get("cannot pass an arena on"); }
  bool has_file() const noexcept { return mapping_->file().is_ours(); }
  Error unmapped(const std::string& what) const { return mapping_->unmapped(what); }
  const unsigned char* uuid() const noexcept { return header().uuid; }
  ArenaHeader& header() const noexcept { return mapping_->header(); }

  BlockTable& blocks() noexcept { return blocks_; }
  Participants& participants() noexcept { return participants_; }
  const TransferTable& transfers() const noexcept { return transfers_; }
  WakeTable& wake_table() noexcept { return wake_table_; }
  const BlockPool& pool() const noexcept { return pool_; }
  Reclaimer& reclaimer() noexcept { return reclaimer_; }
  Reconciler& reconciler() noexcept { return reconciler_; }
  HolderTable& holders() noexcept { return holders_; }
  const Inspector& inspector() const noexcept { return inspector_; }
  Allocator& allocator() noexcept { return allocator_; }
  // The spin that the ends of this process in the arena begin with; at first that of the environment.
  platform::SpinSetting& spin() noexcept { return spin_; }

  // Shortcuts to the parts.
  Result<Identity> identity() { return reconciler_.identity(); }
  Identity current_identity() const noexcept { return participants_.current(); }
  Status lock(std::atomic<std::uint32_t>& word, const platform::WaitContext& wait) {
    return reconciler_.lock(word, wait);
  }
  void unlock(std::atomic<std::uint32_t>& word) noexcept { RobustLock(word, participants_).unlock(); }
  Status reconcile(const platform::WaitContext& wait) { return reconciler_.reconcile(wait); }
  Result<OwnedBlock> allocate(std::uint64_t bytes, BlockKind kind, const platform::WaitContext& wait) {
    return allocator_.allocate(bytes, kind, wait);
  }

  // Pins a written block for this process. No other process knows the block yet.
  Result<Lease> hold_new(OwnedBlock block);
  // Pins a block of that kind that must still be in use (HolderTable::begin_existing).
  Result<Lease> hold_existing(BlockRef ref, BlockKind kind, const platform::WaitContext& wait);
  // Pins a block that is in use while `word` has that value (HolderTable::begin_while). kNotFound if it has changed.
  Result<Lease> hold_while(BlockRef ref, const std::atomic<std::uint64_t>& word, std::uint64_t value);
  // Pins a block to which another block refers that this process holds. Takes no lock. kNotFound if it is not in use.
  Result<Lease> hold_referred(BlockRef ref);
  // Makes one more lease from a hold that was begun (HolderTable::share).
  Result<Lease> share_hold(BlockRef ref) { return make_lease(ref, &HolderTable::share); }

  // Makes a child a member of its parent's channels. Called in the parent before fork(), with every fork-safe mutex
  // held.
  using ForkHook = void (*)(Arena&, Identity parent, Identity child);
  static void set_fork_hook(ForkHook hook) noexcept;

 private:
  friend struct Registry;

  explicit Arena(std::unique_ptr<Mapping> mapping) noexcept;
  static Result<std::shared_ptr<Arena>> enroll(std::unique_ptr<Mapping> mapping, ReservedSlot* reserved);
  ArenaParts parts() noexcept { return {*mapping_, blocks_, participants_, pool_, reclaimer_}; }
  Result<Lease> make_lease(BlockRef ref, bool (HolderTable::*make)(BlockRef) noexcept);

  // The fork handlers. `leaving` is true if the last reference to this object is gone and its destructor is about to
  // run.
  void make_space_for_child() noexcept;
  void before_fork(bool leaving) noexcept;
  void after_fork_in_child(bool leaving) noexcept;
  void forget_parent() noexcept;

  std::unique_ptr<Mapping> mapping_;
  BlockTable blocks_;
  Participants participants_;
  const TransferTable transfers_;
  WakeTable wake_table_;
  HeldBytes held_;
  BlockPool pool_;
  Reclaimer reclaimer_;
  Reconciler reconciler_;
  HolderTable holders_;
  Inspector inspector_;
  Allocator allocator_;
  platform::SpinSetting spin_;
};

// --- Deaths of other processes

// Recovers in a call that does not wait. Gives up after kRecoverInPassingNs, with nothing recovered, because a stopped
// process may block it.
inline Status recover_in_passing(Arena& arena, platform::WaitHooks* hooks = nullptr) {
  return arena.reconcile({platform::Deadline::after_ns(platform::wait_policy::kRecoverInPassingNs), hooks});
}

// For a call that does not wait: checks for deaths if no process has done so for `interval_ns`, and recovers. Returns
// true if it recovered.
inline bool poll_for_deaths(Arena& arena, std::int64_t interval_ns, platform::WaitHooks* hooks = nullptr) {
  return arena.participants().check(interval_ns) && recover_in_passing(arena, hooks).ok();
}

// Does the same for a call that may wait: waits for the locks of the recovery, and returns its error.
inline Result<bool> recover_from_deaths(Arena& arena, std::int64_t interval_ns, const platform::WaitContext& wait) {
  if (!arena.participants().check(interval_ns)) return false;
  Status repaired = arena.reconcile(wait);
  if (!repaired) return std::move(repaired).error();
  return true;
}

}  // namespace shmtree::memory
