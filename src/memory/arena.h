// An arena: one shared-memory file and what a process does with it. A facade of its parts, each of which looks only at
// those before it:
//
//   Mapping        the pieces of the file that this process has mapped        mapping.h
//   BlockTable     the block table, as far as it can be believed              block_table.h
//   Participants   attached processes, and those that died                    participants.h
//   TransferTable  what is in transit between processes                       transfer_table.h
//   WakeTable      addresses of the participants' wake pipes                  wake_table.h
//   RobustLock     a lock that outlives its owners                            robust_lock.h
//   HeldBytes      a sum that is counted without a lock                       block_pool.h
//   BlockPool      the free blocks, and the counts of all                     block_pool.h
//   Reclaimer      when a block may be freed, and who does it                 reclaimer.h
//   ReconcilePass  one pass of recovery                                       reconcile_pass.h
//   Reconciler     locks, and an identity, with what is wrong repaired first  reconciler.h
//   HolderTable    which participant holds which block                        holder_table.h
//   Inspector      looking in                                                 inspector.h
//   Allocator      blocks within the budget, waited for                       allocator.h
//
// Thread safety: every method may be called from any thread. An Arena object is one process's view of the file; a
// process has at most one per file (attach() finds it), and forked children inherit theirs.
//
// The order of stores, which is what makes a kill at any instruction harmless (docs/recovery.md has the whole
// argument):
//   allocate   word := writing(me), then `committed` is raised, then pages are allocated
//   publish    the channel stores the block into its window; then word: writing -> live (by compare-and-swap, since a
//              receiver may have done it already and even have released the block)
//   receive    holder bit, then the window moves on
//   release    holder bit cleared, then whoever gets the arena lock frees the block if nothing else keeps it
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "memory/allocator.h"
#include "memory/holder_table.h"
#include "memory/lease.h"
#include "memory/transfer_table.h"
#include "memory/wake_table.h"
#include "platform/wait_policy.h"

namespace shmtree::memory {

struct ArenaOptions {
  std::uint64_t max_bytes = 0;  // budget for all blocks; 0: half of what the machine and its control groups have left
  std::uint64_t prefault = 0;   // bytes to commit and touch at once
  bool huge_pages = false;
  std::uint64_t page_bytes = 0;  // of a page of memory, for tests; 0: what the system has
};

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  // A new arena of this process. Code::kInvalid for a budget under 1 MiB or over 2 TiB, Code::kOs from the system.
  static Result<std::shared_ptr<Arena>> create(const ArenaOptions& options);
  // The arena behind a descriptor, which may be any file: Code::kIncompatible unless it is a sealed arena of this
  // version. Gives the process's existing Arena where there is one; otherwise the process takes part as `reserved`,
  // which is consumed, if it is given.
  static Result<std::shared_ptr<Arena>> attach(platform::UniqueFd fd, ReservedSlot* reserved = nullptr);
  // What the first bytes of the file say of it. Code::kIncompatible as attach(); takes no part in it.
  struct Head {
    unsigned char uuid[16];
    std::uint64_t max_bytes, flags;
  };
  static Result<Head> read_head(int fd);
  // The arena with this uuid if the process has it, else null.
  static std::shared_ptr<Arena> find(const unsigned char uuid[16]);
  ~Arena();

  // The number of its descriptor, by which others open the file; and that once it was checked, as CheckedFd::get().
  int fd() const noexcept { return mapping_->file().number(); }
  Result<int> checked_fd() const { return mapping_->file().get("cannot hand on an arena"); }
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

  // What most callers want of the parts.
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

  // Turns a written block into one that this process holds and nobody else knows.
  Result<Lease> hold_new(OwnedBlock block);
  // Holds a block that must still be in use: Code::kNotFound when it is not.
  Result<Lease> hold_existing(BlockRef ref, const platform::WaitContext& wait);
  // Holds a block that is in use while `word` has that value (HolderTable::begin_while): kNotFound when it changed.
  Result<Lease> hold_while(BlockRef ref, const std::atomic<std::uint64_t>& word, std::uint64_t value);
  // Holds a block that one refers to which this process holds: without a lock. kNotFound when it is no block in use.
  Result<Lease> hold_referred(BlockRef ref);
  // A lease besides a hold that was begun.
  Result<Lease> share_hold(BlockRef ref) { return make_lease(ref, &HolderTable::share); }

  // Adds a child to channels and the like, around fork; called with every fork-safe mutex held.
  using ForkHook = void (*)(Arena&, Identity parent, Identity child);
  static void set_fork_hook(ForkHook hook) noexcept;

 private:
  friend struct Registry;

  explicit Arena(std::unique_ptr<Mapping> mapping) noexcept;
  static Result<std::shared_ptr<Arena>> enroll(std::unique_ptr<Mapping> mapping, ReservedSlot* reserved);
  ArenaParts parts() noexcept { return {*mapping_, blocks_, participants_, pool_, reclaimer_}; }
  Result<Lease> make_lease(BlockRef ref, bool (HolderTable::*make)(BlockRef) noexcept);

  // The fork handlers. `leaving`: it has no user left and is on its way out.
  void make_room_for_child() noexcept;
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
};

// --- Deaths of other processes, for calls that wait, and for those that do not.

// A recovery on the way of a call that does not wait. A stopped process may stand in the way: then things are as they
// were.
inline Status recover_in_passing(Arena& arena, platform::WaitHooks* hooks = nullptr) {
  return arena.reconcile({platform::Deadline::after_ns(platform::wait_policy::kRecoverInPassingNs), hooks});
}

// For a call that does not wait: looks who has died, when nobody has for `interval_ns`, and tidies up; true when there
// was something to be tidied up.
inline bool look_for_dead(Arena& arena, std::int64_t interval_ns, platform::WaitHooks* hooks = nullptr) {
  return arena.participants().check(interval_ns) && recover_in_passing(arena, hooks).ok();
}

// For a call that waits: looks who has died, when nobody has for `interval_ns`, and recovers. True if it did.
inline Result<bool> recover_from_deaths(Arena& arena, std::int64_t interval_ns, const platform::WaitContext& wait) {
  if (!arena.participants().check(interval_ns)) return false;
  Status repaired = arena.reconcile(wait);
  if (!repaired) return std::move(repaired).error();
  return true;
}

}  // namespace shmtree::memory
