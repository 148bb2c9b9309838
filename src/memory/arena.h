// An arena: one shared-memory file and what a process does with it: take part, lock, allocate, hold, release, recover.
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
//
// Lock order: a channel's senders < its receivers < the arena's; reconcile() takes its own lock before all of them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memory/hold_table.h"
#include "memory/mapping.h"
#include "platform/waiting.h"

namespace shmtree::memory {

class Arena;
class Reconciler;

struct ArenaOptions {
  std::uint64_t max_bytes = 0;  // budget for all blocks; 0: half of what the machine and its control groups have left
  std::uint64_t prefault = 0;   // bytes to commit and touch at once
  bool huge_pages = false;
};

// A block being written by this process. Given up when it goes, unless it was published or turned into a Lease.
class OwnedBlock {
 public:
  OwnedBlock() noexcept = default;
  OwnedBlock(OwnedBlock&& other) noexcept { *this = std::move(other); }
  OwnedBlock& operator=(OwnedBlock&& other) noexcept;
  ~OwnedBlock() { abandon(); }

  bool valid() const noexcept { return arena_ != nullptr; }
  BlockRef ref() const noexcept { return ref_; }
  std::byte* data() const noexcept { return data_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  // Pages newly committed for it: they have never been touched, so a copy into them is cheaper after populate().
  bool cold() const noexcept { return cold_; }

  void abandon() noexcept {
    if (valid()) give_back();
  }

 private:
  friend class Arena;
  void give_back() noexcept;

  Arena* arena_ = nullptr;  // whoever writes keeps the arena
  BlockRef ref_{};
  Identity writer_ = kNobody;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  bool cold_ = false;
};

// Keeps a block for this process. Move-only; the block may be reused once every process's last Lease of it is gone.
class Lease {
 public:
  Lease() noexcept = default;
  Lease(Lease&& other) noexcept { *this = std::move(other); }
  Lease& operator=(Lease&& other) noexcept;
  ~Lease() { reset(); }

  bool valid() const noexcept { return arena_ != nullptr; }
  const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }
  BlockRef ref() const noexcept { return ref_; }
  std::byte* data() const noexcept { return data_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  void reset() noexcept;

 private:
  friend class Arena;
  std::shared_ptr<Arena> arena_;
  BlockRef ref_{};
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint32_t fork_epoch_ = 0;  // Arena::fork_epoch_ when it was made
};

struct HolderInfo {
  BlockRef block{};
  std::uint64_t bytes = 0;
  int pid = 0;
  std::int64_t held_ns = 0;
};

struct ArenaStats {
  std::uint64_t max_bytes, committed_bytes, used_bytes, held_bytes, blocks, participants, reconciles;
};

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  // A new arena of this process. Code::kInvalid for a budget under 1 MiB or over 2 TiB, Code::kOs from the system.
  static Result<std::shared_ptr<Arena>> create(const ArenaOptions& options);
  // A slot taken on behalf of a process that does not run yet (fork, spawn): it holds what `identity` is given and is
  // alive while `lock` is open anywhere.
  struct ReservedSlot {
    Identity identity = kNobody;
    platform::UniqueFd lock;
  };
  // The arena behind a descriptor, which may be any file: Code::kIncompatible unless it is a sealed arena of this
  // version. Gives the process's existing Arena where there is one; otherwise the process takes part as `reserved`,
  // which is consumed, if it is given.
  static Result<std::shared_ptr<Arena>> attach(platform::UniqueFd fd, ReservedSlot* reserved = nullptr);
  // The arena with this uuid if the process has it, else null.
  static std::shared_ptr<Arena> find(const unsigned char uuid[16]);
  ~Arena();

  int fd() const noexcept { return fd_.get(); }
  const unsigned char* uuid() const noexcept { return header().uuid; }
  ArenaHeader& header() const noexcept { return mapping_->header(); }
  const Geometry& geometry() const noexcept { return mapping_->geometry(); }
  Participant& participant(std::uint32_t slot) const noexcept { return mapping_->participant(slot); }

  // --- taking part (participants.cpp) -------------------------------------------------------------------------------

  // This process's identity; takes a slot on the first call after attach or after a fork that ran no handlers.
  // Code::kUnavailable when all 1,024 slots are taken by the living.
  Result<Identity> identity() {
    if (const Identity known = current_identity(); known != kNobody) [[likely]]
      return known;
    return take_identity();
  }
  // The same without attaching: kNobody in a process (a raw clone) that has no slot, which releases nothing.
  Identity current_identity() const noexcept { return platform::process_stamp() == 0 ? kNobody : load_identity(); }
  bool is_alive(Identity identity) const noexcept;
  // Looks at every participant when nobody has for `interval_ns`; true when somebody was found dead (and `dirty` is
  // set).
  bool check_participants(std::int64_t interval_ns) noexcept;
  // Ends participation, not holds: this process is about to exit normally.
  void detach() noexcept;
  bool has_detached(std::uint32_t slot) const noexcept;

  // A slot for a process about to be started.
  Result<ReservedSlot> reserve_slot();
  // Makes this process the owner of a slot that its parent reserved. Ignored when it has an identity already.
  // The parent's copies of `lock` do not keep it alive from then on.
  void adopt_slot(Identity identity, platform::UniqueFd lock) noexcept;
  // Nobody will adopt the slot: not a death.
  void abandon_slot(ReservedSlot slot) noexcept;
  // The process that a reserved slot is for was started; it is named so until it adopts the slot itself.
  void note_started(Identity reserved, int pid) noexcept;

  // --- locks (lock.cpp)
  // -----------------------------------------------------------------------------------------------

  // Takes a channel's or the arena's lock. When derived state is known to be wrong it is repaired first. kTimeout when
  // a living owner keeps it for 40 ms, or 2 s if it is not stopped, whatever the deadline; kInterrupted.
  Status lock(std::atomic<std::uint32_t>& word, const platform::WaitContext& wait);
  bool try_lock(std::atomic<std::uint32_t>& word) noexcept;
  void unlock(std::atomic<std::uint32_t>& word) noexcept;
  Status lock_blocks(const platform::WaitContext& wait) { return lock(header().arena_lock, wait); }
  // Unlocks and sees to what others released meanwhile.
  void unlock_blocks() noexcept;
  // The same as lock() and reconcile() for callers that may not throw; false also for want of memory.
  bool lock_quietly(std::atomic<std::uint32_t>& word, const platform::WaitContext& wait) noexcept;
  bool lock_blocks_quietly(const platform::WaitContext& wait) noexcept {
    return lock_quietly(header().arena_lock, wait);
  }
  bool reconcile_quietly(const platform::WaitContext& wait) noexcept;

  // Derived state is wrong from now on, until a reconcile.
  void mark_dirty() noexcept;
  bool dirty() const noexcept { return platform_load(header().dirty) != 0; }
  // Rebuilds all derived state and drops what dead participants had. Call it holding no lock. Idempotent.
  Status reconcile(const platform::WaitContext& wait);

  // --- blocks (allocator.cpp)
  // -----------------------------------------------------------------------------------------

  // A block of at least `bytes`, its pages committed. Waits while undelivered messages hold the budget; then
  //   kMessageTooLarge    bytes over the budget, at once
  //   kOutOfSharedMemory  only held blocks are in the way, for 1 s (at once when the wait may not block), or the
  //   machine kFull               the deadline passed
  Result<OwnedBlock> allocate(std::uint64_t bytes, BlockKind kind, const platform::WaitContext& wait);
  // Bytes a message can count on at most, and bytes free within the budget now.
  std::uint64_t max_bytes() const noexcept { return mapping_->max_bytes(); }
  std::uint64_t free_bytes() const noexcept;
  std::uint64_t held_bytes() const noexcept { return platform_load(header().held_bytes) & kHeldMask; }
  // Gives the pages of free blocks back to the system; returns how many bytes.
  std::uint64_t trim() noexcept;
  // This process registers pages of blocks that it holds for DMA from now on, or has none any more. While any process
  // does, nobody gives the pages of free blocks back: a device would go on reading the old ones.
  Status set_pinned(bool pinned, const platform::WaitContext& wait);
  bool is_pinned() const noexcept;
  bool is_pinned_here() const noexcept;

  // Records that `block` refers to `referred`, which the caller holds: they live as long as it does. The list is stored
  // in the block's last bytes, which the caller left for it (16 bytes each).
  Status set_references(const OwnedBlock& block, std::span<const BlockRef> referred, const platform::WaitContext& wait);

  // What set_references() recorded for a block that the caller holds, in that order. A list that was damaged since ends
  // early.
  std::vector<BlockRef> referred_to_by(BlockRef ref);
  // Maps what a block that is in use refers to, as far as it was not. The size of a block that there is no address
  // space for; 0 when there was some for all.
  std::uint64_t unmappable_reference(BlockId id) noexcept {
    const BlockEntry* owner = entry(id);
    return owner == nullptr || platform_load(owner->list_length) == 0 ? 0 : map_references(id, *owner);
  }

  // The block was stored in a window: it no longer belongs to its writer.
  void published(OwnedBlock& block) noexcept;
  // A receiver found it in a window.
  void make_live(BlockRef ref) noexcept;
  // Whether `ref` names a block in use with that generation; for numbers read from shared memory.
  bool is_current(BlockRef ref) noexcept;
  // How many of a block's bytes can be used, by its entry, which anybody may write: never more than it has.
  std::uint64_t room_of(BlockId id) noexcept;
  // Whether what is known of `ref` is that this process cannot map it: it has no address space.
  bool is_unmapped(BlockRef ref) noexcept {
    return ref.id.value != 0 && geometry().contains(ref.id) && (entry(ref.id) == nullptr || address(ref.id) == nullptr);
  }
  BlockEntry* entry(BlockId id) noexcept { return geometry().contains(id) ? mapping_->entry(id) : nullptr; }
  std::byte* address(BlockId id) noexcept { return geometry().contains(id) ? mapping_->address(id) : nullptr; }

  // --- holding (lease.cpp)
  // --------------------------------------------------------------------------------------------

  // Turns a written block into one that this process holds and nobody else knows.
  Result<Lease> hold_new(OwnedBlock block);
  // Holds a block that must still be in use: Code::kNotFound when it is not.
  Result<Lease> hold_existing(BlockRef ref, const platform::WaitContext& wait);
  // Sets this process's holder bit for a block found in a window, before the window moves on; then exactly one of
  // adopt_hold (views will be given) and drop_hold (it was copied out) follows, and before that share_hold, for views
  // besides. False, with nothing done, when this process has no memory to note it.
  bool begin_hold(BlockRef ref, Identity me) noexcept;
  // A participant that does not run yet holds a block of this process's from now on.
  void hold_for(BlockRef ref, Identity child) noexcept;
  Result<Lease> adopt_hold(BlockRef ref) { return lease_begun(ref, 1); }
  Result<Lease> share_hold(BlockRef ref) { return lease_begun(ref, 0); }
  void drop_hold(BlockRef ref) noexcept;
  // A delivery record begins or ceases to keep the block; under the receivers' lock.
  void set_delivered(BlockRef ref, bool delivered) noexcept;
  // A record begins to keep a block that this process holds, and is about to let go of. False when the arena's lock is
  // taken.
  bool try_set_delivered(BlockRef ref) noexcept;
  // Frees the block if nothing keeps it. Never blocks.
  void collect(BlockRef ref) noexcept;
  // Frees a block of the channel's own making (a used-up ring segment, a message that is thrown away), now unreachable.
  void release_unreachable(BlockRef ref) noexcept { collect(ref); }
  // Whether anything but this process keeps a block that it holds: another process, a message, a delivery. Once it is
  // not so, it cannot become so but through this process.
  Result<bool> is_shared(BlockRef ref, const platform::WaitContext& wait);
  // Number of leases in this process, for tests and stats.
  std::uint64_t lease_count();

  std::vector<HolderInfo> holders();
  ArenaStats stats();
  // One line per holder for error messages: "pid 12 holds 1048576 bytes for 3.2 s".
  std::string describe_holders(std::size_t most);

  // Walks the whole arena and names the first invariant that does not hold; empty when all do. Nobody else may be
  // working in the arena. For tests.
  std::string check();

  // How the layer above finds what a channel keeps; called once, before the first channel exists.
  using ChannelWalker = void (*)(Arena&, BlockRef channel, Reconciler&);
  using GrantCheck = bool (*)(Arena&, BlockRef channel);
  static void set_channel_walker(ChannelWalker walker, GrantCheck grants) noexcept;
  // Adds the bits of a child's slot to channels and the like, around fork; called with every leaf mutex held.
  using ForkHook = void (*)(Arena&, Identity parent, Identity child);
  static void set_fork_hook(ForkHook hook) noexcept;

 private:
  friend class OwnedBlock;
  friend class Lease;
  friend class Reconciler;
  friend struct ForkHandlers;

  Arena(platform::UniqueFd fd, std::unique_ptr<Mapping> mapping) : fd_(std::move(fd)), mapping_(std::move(mapping)) {}
  static Result<std::shared_ptr<Arena>> enroll(platform::UniqueFd fd, std::unique_ptr<Mapping> mapping,
                                               ReservedSlot* reserved);
  template <class T>
  static T platform_load(const std::atomic<T>& a) noexcept {
    return a.load(std::memory_order_acquire);
  }
  Result<Identity> take_identity();
  Identity load_identity() const noexcept { return identity_.load(std::memory_order_acquire); }

  bool is_status(std::uint32_t slot, ParticipantStatus status) const noexcept;
  Result<ReservedSlot> claim_slot(bool may_sweep);
  Result<Identity> occupy_slot(std::uint32_t slot, ParticipantStatus status);
  Status lock_raw(std::atomic<std::uint32_t>& word, Identity me, const platform::WaitContext& wait);
  Status reconcile_as(Identity me, const platform::WaitContext& wait);
  Status repeat_passes(Identity me, const platform::WaitContext& wait, std::vector<BlockRef>& unfinished);
  void keep_lock_from_children(ReservedSlot& slot) const noexcept;
  void leave() noexcept;

  Status ensure_table(unsigned size_class);
  Result<OwnedBlock> try_allocate(std::uint64_t bytes, BlockKind kind, Identity me, const platform::WaitContext& wait,
                                  bool* short_of_machine);
  struct Taken {
    std::uint64_t had = 0;  // bytes that had pages before
    bool unmapped = false;  // there was no address space
  };
  OwnedBlock take_block(unsigned size_class, std::uint64_t need, std::uint64_t bytes, BlockKind kind, Identity me,
                        Taken* taken) noexcept;
  Status commit_block(OwnedBlock& block, std::uint64_t had, std::uint64_t need, const platform::WaitContext& wait);
  BlockEntry* free_entry(unsigned size_class, std::uint64_t place) noexcept;
  std::uint64_t used_entries(unsigned size_class) const noexcept;
  std::uint64_t walked_entries(unsigned size_class) const noexcept;
  bool counts_are_possible() const noexcept;
  bool give_back(BlockRef ref, std::uint64_t keep, std::uint64_t bytes) noexcept;
  void give_up_unfinished(BlockRef ref) noexcept;
  bool is_kept_by_pins(std::uint64_t bytes) noexcept;
  static constexpr std::size_t kEvictAtOnce = 32;  // blocks taken off the free lists under one lock
  struct Victim {
    BlockRef block;
    std::uint64_t keep, bytes;
  };
  ClassState* least_recently_used() noexcept;
  std::size_t pick_victims(std::uint64_t want, Identity me, Victim* victims) noexcept;
  std::uint64_t evict(std::uint64_t want, const platform::WaitContext* wait) noexcept;
  void trim_excess() noexcept;
  void note_usage(std::uint64_t used) noexcept;

  // Under the arena lock.
  void free_block(BlockId id, BlockEntry& entry) noexcept;
  bool is_referenced(const BlockEntry& entry) const noexcept;
  void free_if_unreferenced(BlockRef ref) noexcept;
  std::uint64_t drop_references(BlockId id, BlockEntry& entry, std::uint64_t orphans, std::uint64_t& count) noexcept;
  void count_held(BlockEntry& entry) noexcept;
  void uncount_held(BlockEntry& entry, std::uint64_t committed) noexcept;
  bool try_lock_blocks() noexcept;
  Result<Lease> make_lease(BlockRef ref);
  Result<Lease> lease_begun(BlockRef ref, std::uint32_t fewer_begun);
  void end_hold(BlockRef ref, std::uint32_t HoldTable::Hold::*what) noexcept;
  std::span<const ListEntry> references_of(BlockId id, const BlockEntry& entry) noexcept;
  std::uint64_t map_references(BlockId id, const BlockEntry& entry) noexcept;
  bool was_used(BlockId id) const noexcept;
  void run_deferred_frees() noexcept;
  bool defer_free(BlockRef ref) noexcept;

  platform::UniqueFd fd_;
  std::unique_ptr<Mapping> mapping_;

  std::atomic<Identity> identity_{kNobody};
  platform::UniqueFd liveness_fd_;
  platform::LeafMutex attach_mutex_;
  ReservedSlot child_;  // between the fork handlers
  std::atomic<std::uint32_t> forks_{0};

  platform::LeafMutex holds_mutex_;
  HoldTable holds_;                           // under holds_mutex_
  std::atomic<std::uint32_t> fork_epoch_{0};  // changes when a child is left without the holds of its parent
};

}  // namespace shmtree::memory
