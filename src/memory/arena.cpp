#include "memory/arena.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "memory/registry.h"
#include "platform/atomics.h"
#include "platform/machine.h"

namespace shmtree::memory {

using namespace platform;

namespace {

constexpr std::uint64_t kMinBudget = 1u << 20;

Error incompatible(const std::string& why) {
  return Error{Code::kIncompatible, "this file is no arena: " + why};
}

}  // namespace

Registry::State& Registry::state() noexcept {
  alignas(State) static unsigned char place[sizeof(State)];
  static State* const state = new (place) State;
  return *state;
}

// Only the one that matches is locked: a last reference let go of in here would want the mutex again.
std::shared_ptr<Arena> Registry::find_unlocked(const unsigned char uuid[16]) {
  for (const Entry& entry : state().arenas) {
    if (std::memcmp(entry.raw->uuid(), uuid, 16) != 0) continue;
    if (auto arena = entry.arena.lock()) return arena;
  }
  return nullptr;
}

// Under the mutex: the living arena of that uuid. An entry's object is there while the mutex is held, since its
// destructor begins with erase(); but a reference to it may only be taken to be returned, as dropping the last one
// would do the same.
std::shared_ptr<Arena> Registry::find_locked(const unsigned char uuid[16]) {
  for (const Entry& entry : state().arenas) {
    if (std::memcmp(entry.raw->uuid(), uuid, 16) != 0) continue;
    if (auto arena = entry.arena.lock()) return arena;
  }
  return nullptr;
}

std::shared_ptr<Arena> Registry::find(const unsigned char uuid[16]) {
  const std::lock_guard guard(state().mutex);
  return find_locked(uuid);
}

std::shared_ptr<Arena> Registry::insert(const std::shared_ptr<Arena>& arena) {
  const std::lock_guard guard(state().mutex);
  if (auto known = find_locked(arena->uuid())) return known;
  state().arenas.push_back(Entry{arena.get(), arena});
  return arena;
}

void Registry::erase(const Arena* arena) noexcept {
  const std::lock_guard guard(state().mutex);
  std::erase_if(state().arenas, [arena](const Entry& entry) { return entry.raw == arena; });
}

namespace {

// Half of what the machine has left, and no more than fits a file of the size that the process may make.
std::uint64_t default_budget() noexcept {
  std::uint64_t budget = round_up(std::clamp(available_memory_bytes() / 2, kMinBudget, kMaxBudget), kPageBytes);
  const std::uint64_t most = largest_file_bytes();
  while (Geometry(budget).file_bytes() > most && budget / 2 >= kMinBudget) budget = round_up(budget / 2, kPageBytes);
  return budget;
}

}  // namespace

Result<std::shared_ptr<Arena>> Arena::create(const ArenaOptions& options) {
  const std::uint64_t budget = options.max_bytes != 0 ? round_up(options.max_bytes, kPageBytes) : default_budget();
  if (budget < kMinBudget || budget > kMaxBudget) {
    return Error{Code::kInvalid, "max_bytes is " + std::to_string(options.max_bytes) + "; an arena takes from " +
                                     std::to_string(kMinBudget) + " to " + std::to_string(kMaxBudget) + " bytes"};
  }
  const Geometry geometry(budget);
  auto fd = create_memory_file(kFileName, geometry.file_bytes());
  if (!fd) return std::move(fd).error();
  Status committed = commit_pages(fd->get(), 0, kHeaderBytes);
  if (!committed) return std::move(committed).error();
  auto mapping = Mapping::create(fd->get(), budget, options.huge_pages);
  if (!mapping) return std::move(mapping).error();
  ArenaHeader& header = (*mapping)->header();
  random_bytes(header.uuid, sizeof header.uuid);
  header.max_bytes = budget;
  header.file_bytes = geometry.file_bytes();
  header.flags = options.huge_pages ? 1 : 0;
  header.header_bytes = static_cast<std::uint32_t>(sizeof(ArenaHeader));
  header.version = kVersion;
  header.magic = kMagic;
  auto arena = enroll(std::move(*fd), std::move(*mapping), nullptr);
  if (arena && options.prefault != 0) {
    // A block of that size, committed, touched and given back: its pages stay for whoever comes next.
    auto block = (*arena)->allocate(options.prefault, BlockKind::kArray, WaitContext{Deadline::immediate()});
    if (!block) return std::move(block).error();
    populate(block->data(), block->bytes());
  }
  return arena;
}

Result<std::shared_ptr<Arena>> Arena::attach(UniqueFd fd, ReservedSlot* reserved) {
  auto size = file_size(fd.get());
  if (!size) return std::move(size).error();
  if (!size_is_sealed(fd.get())) return incompatible("its size is not sealed");
  if (*size < kHeaderBytes) return incompatible("it has " + std::to_string(*size) + " bytes");
  auto page = map_shared(fd.get(), 0, kHeaderBytes);
  if (!page) return std::move(page).error();
  const ArenaHeader& header = *reinterpret_cast<const ArenaHeader*>(*page);
  const std::uint64_t magic = header.magic, budget = header.max_bytes, flags = header.flags;
  const std::uint32_t version = header.version, header_bytes = header.header_bytes;
  unsigned char uuid[16];
  std::memcpy(uuid, header.uuid, sizeof uuid);
  unmap(*page, kHeaderBytes);
  if (magic != kMagic) return incompatible("its first bytes are others");
  if (version != kVersion || header_bytes != sizeof(ArenaHeader)) {
    return Error{Code::kIncompatible, "the arena has layout version " + std::to_string(version) + ", this is version " +
                                          std::to_string(kVersion) + " of shmtree's layout"};
  }
  if (budget < kMinBudget || budget > kMaxBudget || Geometry(budget).file_bytes() != *size) {
    return incompatible("a budget of " + std::to_string(budget) + " bytes does not fit its " + std::to_string(*size) +
                        " bytes");
  }
  if (auto known = find(uuid)) return known;
  auto mapping = Mapping::create(fd.get(), budget, (flags & 1) != 0);
  if (!mapping) return std::move(mapping).error();
  return enroll(std::move(fd), std::move(*mapping), reserved);
}

Result<std::shared_ptr<Arena>> Arena::enroll(UniqueFd fd, std::unique_ptr<Mapping> mapping, ReservedSlot* reserved) {
  Registry::install_fork_handlers();
  std::shared_ptr<Arena> arena = Registry::insert(std::shared_ptr<Arena>(new Arena(std::move(fd), std::move(mapping))));
  if (reserved != nullptr) arena->adopt_slot(reserved->identity, std::move(reserved->lock));
  auto me = arena->identity();
  if (!me) return std::move(me).error();
  return arena;
}

std::shared_ptr<Arena> Arena::find(const unsigned char uuid[16]) {
  return Registry::find(uuid);
}

// Fork handlers see the arena until it has let go of its lock: a child that inherited that would keep us alive in it.
Arena::~Arena() {
  leave();
  Registry::erase(this);
}

// No lease of this process is left. The slot is given back clean if nothing names it any more; otherwise it is left to
// whoever finds the lock gone.
void Arena::leave() noexcept {
  const Identity me = current_identity();
  if (me == kNobody) return;
  Participant& mine = participant(slot_of(me));
  bool deferred = load_acquire(mine.deferred_overflow) != 0;
  for (const auto& block : mine.deferred_frees) deferred = deferred || load_acquire(block) != 0;
  const bool attached = load_acquire(mine.status) == static_cast<std::uint32_t>(ParticipantStatus::kAttached);
  store_release(mine.status, static_cast<std::uint32_t>(attached && !deferred ? ParticipantStatus::kFree
                                                                              : ParticipantStatus::kDetached));
  const std::lock_guard guard(attach_mutex_);
  liveness_fd_.reset();
  identity_.store(kNobody, std::memory_order_release);
}

}  // namespace shmtree::memory
