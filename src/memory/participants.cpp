// Who takes part in an arena, and who has died. A participant lives while its byte of the file is locked through a
// descriptor of its own, which the kernel closes with the process.
#include <algorithm>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "memory/arena.h"
#include "memory/registry.h"
#include "platform/atomics.h"
#include "platform/machine.h"

namespace shmtree::memory {

using namespace platform;

namespace {

Arena::ForkHook g_fork_hook = nullptr;

}  // namespace

void Arena::set_fork_hook(ForkHook hook) noexcept {
  g_fork_hook = hook;
}

bool Arena::is_alive(Identity identity) const noexcept {
  const std::uint32_t slot = slot_of(identity);
  const Participant& other = participant(slot);
  if (load_acquire(other.generation) != generation_of(identity)) return false;
  if (load_acquire(other.status) == static_cast<std::uint32_t>(ParticipantStatus::kFree)) return false;
  return identity == load_identity() || byte_is_locked(fd(), slot);
}

bool Arena::is_status(std::uint32_t slot, ParticipantStatus status) const noexcept {
  return load_acquire(participant(slot).status) == static_cast<std::uint32_t>(status);
}

bool Arena::has_detached(std::uint32_t slot) const noexcept {
  return is_status(slot, ParticipantStatus::kDetached);
}

void Arena::mark_dirty() noexcept {
  add(header().dirty, 1u);
}

bool Arena::check_participants(std::int64_t interval_ns) noexcept {
  const std::int64_t now = monotonic_ns();
  std::int64_t last = load_acquire(header().last_check_ns);
  if (last >= 0 && last <= now && now - last < interval_ns) return dirty();
  if (!compare_swap(header().last_check_ns, last, now)) return dirty();  // somebody else is looking
  const std::uint32_t high = std::min(load_acquire(header().participants_high), kMaxParticipants);
  for (std::uint32_t slot = 0; slot < high; ++slot) {
    const Participant& other = participant(slot);
    if (load_acquire(other.status) == static_cast<std::uint32_t>(ParticipantStatus::kFree)) continue;
    if (!is_alive(make_identity(slot, load_acquire(other.generation)))) {
      // A slot freed, or taken anew, between the two looks is no death; the reconcile looks again anyway.
      mark_dirty();
      break;
    }
  }
  if (load_acquire(header().garbage) != 0) mark_dirty();
  return dirty();
}

// Takes a byte lock and with it the slot. Slots that their last owner gave back are preferred; one whose owner died is
// taken as stale and swept before it holds anything, since holder bits carry no generation.
Result<Arena::ReservedSlot> Arena::claim_slot(bool may_sweep) {
  auto lock = reopen(fd());
  if (!lock) return std::move(lock).error();
  for (const bool stale : {false, true}) {
    if (stale && !may_sweep) break;
    for (std::uint32_t slot = 0; slot < kMaxParticipants; ++slot) {
      if (is_status(slot, ParticipantStatus::kFree) == stale) continue;
      auto locked = try_lock_byte(lock->get(), slot);
      if (!locked) return std::move(locked).error();
      if (!*locked) continue;
      if (is_status(slot, ParticipantStatus::kFree) == stale) {  // changed hands while we looked
        Status unlocked = unlock_byte(lock->get(), slot);
        if (!unlocked) return std::move(unlocked).error();
        continue;
      }
      auto identity = occupy_slot(slot, stale ? ParticipantStatus::kStale : ParticipantStatus::kAttached);
      if (!identity) return std::move(identity).error();
      if (stale) {
        mark_dirty();
        Status swept = reconcile_as(*identity, WaitContext{});
        if (!swept) return std::move(swept).error();
      }
      return ReservedSlot{*identity, std::move(*lock)};
    }
  }
  return Error{Code::kUnavailable, "all " + std::to_string(kMaxParticipants) +
                                       " participant slots of this arena are taken by living processes"};
}

Result<Identity> Arena::occupy_slot(std::uint32_t slot, ParticipantStatus status) {
  Status committed = commit_pages(fd(), kHeaderBytes + slot * sizeof(Participant), sizeof(Participant));
  if (!committed) return std::move(committed).error();
  Participant& mine = participant(slot);
  std::uint32_t generation = (load_relaxed(mine.generation) + 1) & 0xfffffu;
  if (generation == 0) generation = 1;  // identity 0 means nobody
  store_relaxed(mine.pid, process_id());
  store_relaxed(mine.attached_ns, monotonic_ns());
  store_release(mine.generation, generation);
  store_release(mine.status, static_cast<std::uint32_t>(status));
  std::uint32_t high = load_acquire(header().participants_high);
  while (high <= slot && !compare_swap(header().participants_high, high, slot + 1)) {
  }
  return make_identity(slot, generation);
}

Result<Identity> Arena::take_identity() {
  if (process_stamp() == 0) Registry::forget_parent();  // a child of a fork that ran no handlers
  const std::uint32_t forks = load_acquire(forks_);
  auto slot = claim_slot(true);
  if (!slot) return std::move(slot).error();
  const std::lock_guard guard(attach_mutex_);
  if (const Identity known = load_identity(); known != kNobody) {  // another thread was faster
    store_release(participant(slot_of(slot->identity)).status, static_cast<std::uint32_t>(ParticipantStatus::kFree));
    return known;
  }
  if (load_acquire(forks_) != forks) keep_lock_from_children(*slot);
  liveness_fd_ = std::move(slot->lock);
  identity_.store(slot->identity, std::memory_order_release);
  return slot->identity;
}

// Moves the lock to a description of its own. Others may have descriptors of the old one, and a lock lives as long as
// any of them: the parent that reserved it, and children that were forked before the descriptor was known to be ours.
void Arena::keep_lock_from_children(ReservedSlot& slot) const noexcept {
  try {
    auto own = reopen(fd());
    if (own && move_byte_lock(slot.lock.get(), own->get(), slot_of(slot.identity))) slot.lock = std::move(*own);
  } catch (const std::bad_alloc&) {  // the one that there is serves as well
  }
}

Result<Arena::ReservedSlot> Arena::reserve_slot() {
  return claim_slot(true);
}

void Arena::adopt_slot(Identity identity, UniqueFd lock) noexcept {
  std::lock_guard guard(attach_mutex_);
  if (load_identity() != kNobody || !lock.valid()) return;
  Participant& mine = participant(slot_of(identity));
  if (load_acquire(mine.generation) != generation_of(identity)) return;
  ReservedSlot slot{identity, std::move(lock)};
  keep_lock_from_children(slot);
  store_relaxed(mine.pid, process_id());
  liveness_fd_ = std::move(slot.lock);
  identity_.store(identity, std::memory_order_release);
}

void Arena::abandon_slot(ReservedSlot slot) noexcept {
  if (!slot.lock.valid()) return;
  Participant& theirs = participant(slot_of(slot.identity));
  if (load_acquire(theirs.generation) != generation_of(slot.identity)) return;
  store_release(theirs.status, static_cast<std::uint32_t>(ParticipantStatus::kDetached));
}

void Arena::note_started(Identity reserved, int pid) noexcept {
  Participant& theirs = participant(slot_of(reserved));
  std::int32_t expected = process_id();
  if (load_acquire(theirs.generation) == generation_of(reserved)) compare_swap(theirs.pid, expected, std::int32_t{pid});
}

void Arena::detach() noexcept {
  const Identity me = current_identity();
  if (me != kNobody) {
    store_release(participant(slot_of(me)).status, static_cast<std::uint32_t>(ParticipantStatus::kDetached));
  }
}

// --- fork
// -------------------------------------------------------------------------------------------------------------

// Every leaf mutex is held in all three, so the maps can be read and must not be locked.
struct ForkHandlers {
  // Before those mutexes are taken.
  static void make_room(Arena& arena) noexcept {
    for (std::uint32_t slot = 0; slot < kMaxParticipants; ++slot) {
      if (arena.is_status(slot, ParticipantStatus::kFree)) return;
    }
    if (arena.check_participants(0)) arena.reconcile_quietly(WaitContext{Deadline::after_ns(1'000'000'000)});
  }
  static std::optional<Arena::ReservedSlot> claim_slot_of(Arena& arena) noexcept {
    try {
      auto slot = arena.claim_slot(false);  // sweeping would take locks
      if (slot) return std::move(*slot);
    } catch (const std::bad_alloc&) {
    }
    return std::nullopt;
  }
  // The child gets a slot of its own before it exists, with the parent's holds: its inherited views stay valid whatever
  // the parent does next. Where that fails (no descriptors, memory, slots) the child starts as nobody and releases
  // nothing.
  static void prepare(Arena& arena, bool leaving) noexcept {
    const Identity parent = arena.load_identity();
    arena.child_ = Arena::ReservedSlot{};
    if (parent == kNobody || leaving) return;
    std::optional<Arena::ReservedSlot> slot = claim_slot_of(arena);
    if (!slot) return;
    const std::uint32_t child = slot_of(slot->identity);
    arena.holds_.for_each([&](const HoldTable::Hold& hold) {
      // What a receiving thread is about to make a lease of is not inherited: the thread is not.
      BlockEntry* block = hold.leases == 0 ? nullptr : arena.entry(BlockId{hold.id});
      if (block != nullptr) block->holders.add(child);
    });
    if (g_fork_hook != nullptr) g_fork_hook(arena, parent, slot->identity);
    arena.child_ = std::move(*slot);
  }
  // The child's copy of the descriptor keeps the lock. If fork failed nobody has it and the slot is found dead.
  static void parent(Arena& arena, bool) noexcept {
    arena.child_ = Arena::ReservedSlot{};
    add(arena.forks_, 1u);
  }
  static void child(Arena& arena, bool leaving) noexcept {
    // The thread that is on its way out of the arena is not inherited, so nobody would give the child's slot back.
    if (leaving) arena.abandon_slot(std::exchange(arena.child_, Arena::ReservedSlot{}));
    arena.liveness_fd_ = std::move(arena.child_.lock);  // closes ours of the parent's, which would keep it alive
    arena.identity_.store(arena.child_.identity, std::memory_order_release);
    if (arena.child_.identity != kNobody) {
      store_relaxed(arena.participant(slot_of(arena.child_.identity)).pid, process_id());
      arena.holds_.for_each([](HoldTable::Hold& hold) { hold.in_flight = 0; });
    } else {
      lose_holds(arena);
    }
    arena.child_ = Arena::ReservedSlot{};
  }
  static void forget(Arena& arena, bool) noexcept {
    arena.liveness_fd_.reset();
    arena.identity_.store(kNobody, std::memory_order_release);
    lose_holds(arena);
  }
  // Leases that the child inherited end without effect, also once it holds blocks of its own.
  static void lose_holds(Arena& arena) noexcept {
    arena.holds_.clear();
    arena.fork_epoch_.fetch_add(1, std::memory_order_relaxed);
  }
};

// Those that there is no memory to list are left out.
std::vector<std::shared_ptr<Arena>> Registry::all() noexcept {
  std::vector<std::shared_ptr<Arena>> arenas;
  const std::lock_guard guard(state().mutex);
  try {
    arenas.reserve(state().arenas.size());
  } catch (const std::bad_alloc&) {
    return arenas;
  }
  for (const Entry& entry : state().arenas) {
    if (auto arena = entry.arena.lock()) arenas.push_back(std::move(arena));
  }
  return arenas;
}

// Children that came and went leave their slots to the next reconcile, which a fork that needs one cannot run.
void Registry::make_room_for_children() noexcept {
  for (const auto& arena : all()) {
    if (arena->current_identity() != kNobody) ForkHandlers::make_room(*arena);
  }
}

void Registry::install_fork_handlers() noexcept {
  set_fork_handlers(
      &make_room_for_children, [] { for_each_unlocked(&ForkHandlers::prepare); },
      [] { for_each_unlocked(&ForkHandlers::parent); }, [] { for_each_unlocked(&ForkHandlers::child); });
}

void Registry::forget_parent() noexcept {
  static std::atomic<std::uint32_t> once{0};  // two threads of the child cannot both be first
  while (once.exchange(1, std::memory_order_acquire) != 0) relax_cpu();
  if (process_stamp() == 0) {
    release_leaf_mutexes();
    for_each_unlocked(&ForkHandlers::forget);
    restore_process_stamp();
  }
  once.store(0, std::memory_order_release);
}

}  // namespace shmtree::memory
