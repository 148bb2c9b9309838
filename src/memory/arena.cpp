#include "memory/arena.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "platform/dcheck.h"
#include "platform/file.h"
#include "platform/fork.h"
#include "platform/machine.h"
#include "platform/memory_limits.h"
#include "platform/never_destroyed.h"
#include "platform/other_version.h"
#include "platform/weak_registry.h"

namespace shmtree::memory {

using namespace platform;

// The arenas of this process, and their fork handlers.
struct Registry {
  static platform::WeakRegistry<Arena>& arenas() noexcept;
  // Idempotent.
  static void install_fork_handlers() noexcept;
};

namespace {

constexpr std::uint64_t kMinBudget = 1u << 20;
constexpr std::uint32_t kFewParticipants = 64;
static_assert(std::has_single_bit(kMaxParticipants));

Arena::ForkHook g_fork_hook = nullptr;

Error incompatible(const std::string& why) {
  return Error{Code::kIncompatible, "this file is not an arena: " + why};
}

// Returns half of the memory that the machine has left, or less if the process may not create so large a file.
std::uint64_t default_budget() {
  std::uint64_t budget = round_up(std::clamp(available_memory_bytes() / 2, kMinBudget, kMaxBudget), kPageBytes);
  const std::uint64_t most = largest_file_bytes();
  while (Geometry(budget).file_bytes() > most && budget / 2 >= kMinBudget) budget = round_up(budget / 2, kPageBytes);
  return budget;
}

// Mapped and released ranges begin at multiples of the largest supported page size, so every smaller size works too.
Status check_pages(std::uint64_t page_bytes) {
  if (std::has_single_bit(page_bytes) && page_bytes >= kPageBytes && page_bytes <= kMaxPageBytes) return success();
  return Error{Code::kIncompatible, "this system's memory pages have " + std::to_string(page_bytes) +
                                        " bytes; an arena supports sizes from " + std::to_string(kPageBytes) + " to " +
                                        std::to_string(kMaxPageBytes)};
}

}  // namespace

Arena::Arena(std::unique_ptr<Mapping> mapping) noexcept
    : mapping_(std::move(mapping)),
      blocks_(*mapping_),
      participants_(mapping_->header(), mapping_->participants(), mapping_->file()),
      transfers_(mapping_->header(), blocks_, participants_),
      wake_table_(*mapping_, participants_),
      held_(mapping_->header()),
      pool_(*mapping_, blocks_, held_),
      reclaimer_(*this, *mapping_, blocks_, participants_, pool_),
      reconciler_(*this, parts()),
      holders_(parts(), held_, reconciler_),
      inspector_(parts()),
      allocator_(parts(), reconciler_, inspector_) {}

// Fork handlers see the arena until leave() has closed the liveness lock: a child that inherited that lock would keep
// this process alive in the arena.
Arena::~Arena() {
  participants_.leave();
  Registry::arenas().erase(this);
}

Result<std::shared_ptr<Arena>> Arena::create(const ArenaOptions& options) {
  const std::uint64_t page_bytes = options.page_bytes != 0 ? options.page_bytes : page_size();
  if (Status pages = check_pages(page_bytes); !pages) return std::move(pages).error();
  const std::uint64_t budget = options.max_bytes != 0 ? round_up(options.max_bytes, kPageBytes) : default_budget();
  if (budget < kMinBudget || budget > kMaxBudget) {
    return Error{Code::kInvalid, "max_bytes is " + std::to_string(options.max_bytes) + "; it must be from " +
                                     std::to_string(kMinBudget) + " to " + std::to_string(kMaxBudget) + " bytes"};
  }
  const Geometry geometry(budget);
  auto fd = create_memory_file(kFileName, geometry.file_bytes());
  if (!fd) return std::move(fd).error();
  Status committed = commit_pages(fd->get(), 0, kHeaderBytes);
  if (!committed) return std::move(committed).error();
  auto mapping = Mapping::create(std::move(*fd), budget, options.huge_pages, page_bytes);
  if (!mapping) return std::move(mapping).error();
  ArenaHeader& header = (*mapping)->header();
  random_bytes(header.uuid, sizeof header.uuid);
  header.max_bytes = budget;
  header.file_bytes = geometry.file_bytes();
  header.flags = options.huge_pages ? 1 : 0;
  header.header_bytes = static_cast<std::uint32_t>(sizeof(ArenaHeader));
  header.version = kVersion;
  header.magic = kMagic;
  auto arena = enroll(std::move(*mapping), nullptr);
  if (arena && options.prefault != 0) {
    // Allocates a block of that size, touches its pages and frees it. The pages stay for later allocations.
    auto block = (*arena)->allocate(options.prefault, BlockKind::kArray, WaitContext{Deadline::immediate()});
    if (!block) return std::move(block).error();
    populate(block->data(), block->bytes());
  }
  return arena;
}

Result<Arena::Head> Arena::read_head(int fd) {
  auto size = file_size(fd);
  if (!size) return std::move(size).error();
  if (!size_is_sealed(fd)) return incompatible("its size is not sealed");
  if (*size < kHeaderBytes) return incompatible("it has " + std::to_string(*size) + " bytes, fewer than a header");
  ArenaHeader header{};
  if (!read_at(fd, 0, &header, sizeof header)) return incompatible("its header cannot be read");
  if (header.magic != kMagic) return incompatible("it has no arena header");
  if (header.version != kVersion || header.header_bytes != sizeof(ArenaHeader)) {
    return platform::other_version("the arena has layout version", header.version, kVersion);
  }
  const std::uint64_t budget = header.max_bytes;
  if (budget < kMinBudget || budget > kMaxBudget || Geometry(budget).file_bytes() != *size) {
    return incompatible("its budget of " + std::to_string(budget) + " bytes does not match its size of " +
                        std::to_string(*size) + " bytes");
  }
  Head head{{}, budget, header.flags};
  std::memcpy(head.uuid, header.uuid, sizeof head.uuid);
  return head;
}

Result<std::shared_ptr<Arena>> Arena::attach(UniqueFd fd, ReservedSlot* reserved) {
  const auto head = read_head(fd.get());
  if (!head) return head.error();
  if (auto existing = find(head->uuid)) return existing;
  if (Status pages = check_pages(page_size()); !pages) return std::move(pages).error();
  auto mapping = Mapping::create(std::move(fd), head->max_bytes, (head->flags & 1) != 0, page_size());
  if (!mapping) return std::move(mapping).error();
  return enroll(std::move(*mapping), reserved);
}

Result<std::shared_ptr<Arena>> Arena::enroll(std::unique_ptr<Mapping> mapping, ReservedSlot* reserved) {
  Registry::install_fork_handlers();
  platform::forget_parent();  // later, a child of a fork without handlers would forget what it adopts now
  const auto spin_ns = spin_ns_of_environment();
  if (!spin_ns) return spin_ns.error();
  const std::shared_ptr<Arena> attached(new Arena(std::move(mapping)));
  attached->spin_.set_ns(*spin_ns).value();
  auto arena = Registry::arenas().insert(
      attached, [&](const Arena& other) { return std::memcmp(other.uuid(), attached->uuid(), 16) == 0; });
  if (reserved != nullptr) arena->participants_.adopt(reserved->identity, std::move(reserved->lock));
  auto me = arena->identity();
  if (!me) return std::move(me).error();
  return arena;
}

void Arena::set_process_name(std::string_view name) noexcept {
  if (!Participants::set_process_name(name)) return;
  for (const auto& arena : Registry::arenas().all()) arena->participants_.note_process_name();
}

std::shared_ptr<Arena> Arena::find(const unsigned char uuid[16]) {
  return Registry::arenas().find([uuid](const Arena& arena) { return std::memcmp(arena.uuid(), uuid, 16) == 0; });
}

Result<Lease> Arena::hold_new(OwnedBlock block) {
  SHMTREE_DCHECK(block.valid());
  const BlockRef ref = block.ref();
  Status begun = holders_.begin_new(block);
  if (!begun) return std::move(begun).error();
  return make_lease(ref, &HolderTable::adopt);
}

Result<Lease> Arena::hold_existing(BlockRef ref, BlockKind kind, const WaitContext& wait) {
  Status begun = holders_.begin_existing(ref, kind, wait);
  if (!begun) return std::move(begun).error();
  return make_lease(ref, &HolderTable::adopt);
}

Result<Lease> Arena::hold_while(BlockRef ref, const std::atomic<std::uint64_t>& word, std::uint64_t value) {
  auto me = identity();
  if (!me) return std::move(me).error();
  switch (holders_.begin_while(ref, *me, word, value)) {
    case HolderTable::Tried::kDone: return make_lease(ref, &HolderTable::adopt);
    case HolderTable::Tried::kChanged: return Error{Code::kNotFound, "the block was replaced before it was pinned"};
    case HolderTable::Tried::kNoMemory: break;
  }
  return Error{Code::kOutOfSharedMemory, "out of memory: this process cannot record that it holds a block"};
}

Result<Lease> Arena::hold_referred(BlockRef ref) {
  auto me = identity();
  if (!me) return std::move(me).error();
  if (!blocks_.is_current(ref)) return Error{Code::kNotFound, "a referenced block was freed"};
  if (holders_.begin(ref, *me)) return make_lease(ref, &HolderTable::adopt);
  return Error{Code::kOutOfSharedMemory, "out of memory: this process cannot record that it holds a block"};
}

Result<Lease> Arena::make_lease(BlockRef ref, bool (HolderTable::*make)(BlockRef) noexcept) {
  Lease lease;
  lease.forks_ = holders_.forks();  // before a child can inherit the lease
  if (!(holders_.*make)(ref)) return Error{Code::kInvalid, "this process does not hold the block"};
  lease.arena_ = shared_from_this();
  lease.ref_ = ref;
  lease.fork_epoch_ = holders_.fork_epoch();
  lease.data_ = blocks_.address(ref.id);
  lease.bytes_ = std::min(load_relaxed(blocks_.entry(ref.id)->size), std::uint64_t{1} << ref.id.size_class());
  if (lease.data_ == nullptr) return mapping_->unmapped("a block");
  return lease;
}

void Arena::set_fork_hook(ForkHook hook) noexcept {
  g_fork_hook = hook;
}

// Runs before the fork-safe mutexes are taken: with them held, no reconcile can run to free the slots of children that
// have exited. Checks for deaths each time that the number of used slots has doubled and none is free. So a process
// that forks again and again does not use, and touch, all slots.
void Arena::make_space_for_child() noexcept {
  const std::uint32_t used = participants_.used_slots();
  if (used < kFewParticipants || !std::has_single_bit(used)) return;
  for (std::uint32_t slot = 0; slot < used; ++slot) {
    if (participants_.is_status(slot, ParticipantStatus::kFree)) return;
  }
  if (participants_.check(0)) reconciler_.reconcile_quietly(WaitContext{Deadline::after_ns(1'000'000'000)});
}

// Claims a slot for the child before it exists, and gives it the parent's holds, so that inherited views stay valid
// even if the parent releases its own. If that fails (no descriptors, memory or slots), the child starts as kNoIdentity
// and releases nothing.
void Arena::before_fork(bool leaving) noexcept {
  const Identity child = participants_.claim_for_child(leaving);
  holders_.pass_to_child(child);
  if (child != kNoIdentity && g_fork_hook != nullptr) g_fork_hook(*this, participants_.current(), child);
}

void Arena::after_fork_in_child(bool leaving) noexcept {
  holders_.after_fork_in_child(participants_.after_fork_in_child(leaving));
}

void Arena::forget_parent() noexcept {
  participants_.forget();
  holders_.after_fork_in_child(false);
}

// --- Lease

bool Lease::is_inherited() const noexcept {
  return arena_ != nullptr && arena_->holders().is_inherited(ref_, forks_);
}

void Lease::reset() noexcept {
  const std::shared_ptr<Arena> arena = std::move(arena_);
  arena_.reset();
  if (arena != nullptr) arena->holders().end_lease(ref_, fork_epoch_);
}

// --- Registry

platform::WeakRegistry<Arena>& Registry::arenas() noexcept {
  return platform::never_destroyed<platform::WeakRegistry<Arena>>();
}

void Registry::install_fork_handlers() noexcept {
  static constinit platform::ForkHandlers handlers{
      .first =
          [] {
            for (const auto& arena : arenas().all()) {
              if (arena->current_identity() != kNoIdentity) arena->make_space_for_child();
            }
          },
      .prepare = [] { arenas().for_each_unlocked([](Arena& arena, bool leaving) { arena.before_fork(leaving); }); },
      .parent =
          [] { arenas().for_each_unlocked([](Arena& arena, bool) { arena.participants_.after_fork_in_parent(); }); },
      .child =
          [] { arenas().for_each_unlocked([](Arena& arena, bool leaving) { arena.after_fork_in_child(leaving); }); },
      .orphan = [] { arenas().for_each_unlocked([](Arena& arena, bool) { arena.forget_parent(); }); },
  };
  arenas();  // created now, because the handlers run with every fork-safe mutex held
  platform::add_fork_handlers(handlers);
}

}  // namespace shmtree::memory
