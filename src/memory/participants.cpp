#include "memory/participants.h"

#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>

#include "memory/held_locks.h"
#include "platform/atomics.h"
#include "platform/clock.h"
#include "platform/dcheck.h"
#include "platform/file.h"
#include "platform/machine.h"
#include "platform/text.h"
#include "platform/wait_policy.h"

namespace shmtree::memory {

using namespace platform;

namespace {

constinit std::atomic<std::uint64_t> g_name[kNameWords] = {};  // of this process

void write_name(Participant& mine) noexcept {
  for (std::uint32_t i = 0; i < kNameWords; ++i) store_relaxed(mine.name[i], g_name[i].load(std::memory_order_relaxed));
}

// A sleeping thread updates `since_ns` at the end of each slice. If the value is two slices old, the thread was killed.
constexpr std::uint64_t kMaxUncountedNs = 2 * wait_policy::kLaterSliceNs;

Wait* take_entry(Participant& mine) noexcept {
  for (Wait& entry : mine.waits) {
    auto free = static_cast<std::uint32_t>(WaitFor::kNothing);
    if (load_relaxed(entry.what) == free &&
        compare_swap(entry.what, free, static_cast<std::uint32_t>(WaitFor::kUnsaid)))
      return &entry;
  }
  return nullptr;
}

// Returns the time since `then_ns`, or 0 if that word is damaged.
std::uint64_t since(std::int64_t then_ns, std::int64_t now_ns) noexcept {
  return then_ns > 0 && then_ns < now_ns ? static_cast<std::uint64_t>(now_ns - then_ns) : 0;
}

// The thread that advances `since_ns` counts the time in between.
void count_until(SleepTime& time, std::int64_t now_ns) noexcept {
  std::int64_t then = load_acquire(time.since_ns);
  const std::uint64_t slept = since(then, now_ns);
  if (slept != 0 && compare_swap(time.since_ns, then, now_ns)) add(time.slept_ns, slept);
}

void open(SleepTime& time, std::int64_t now_ns) noexcept {
  std::int64_t expected = 0;
  compare_swap(time.since_ns, expected, now_ns);
}

}  // namespace

bool Participants::is_alive(Identity identity) const noexcept {
  const Participant& other = slot_of_identity(identity);
  if (load_acquire(other.generation) != generation_of(identity)) return false;
  if (is_status(slot_of(identity), ParticipantStatus::kFree)) return false;
  return identity == load_identity() || !file_.is_ours() || byte_is_locked(file_.number(), slot_of(identity));
}

bool Participants::has_descriptors() noexcept {
  if (lost_descriptors_.load(std::memory_order_acquire)) return false;
  const std::lock_guard guard(mutex_);
  if (file_.is_ours() && (load_identity() == kNoIdentity || liveness_fd_.is_ours())) return true;
  lost_descriptors_.store(true, std::memory_order_release);
  identity_.store(kNoIdentity, std::memory_order_release);
  return false;
}

Status Participants::check_descriptors() {
  if (has_descriptors()) return success();
  const std::lock_guard guard(mutex_);
  const bool has_file = file_.is_ours();
  return closed_by_program(has_file ? liveness_fd_.number() : file_.number(), "cannot use an arena");
}

bool Participants::check(std::int64_t interval_ns) noexcept {
  const std::int64_t now = monotonic_ns();
  if (now - descriptors_checked_ns_.load(std::memory_order_relaxed) >= interval_ns) {
    descriptors_checked_ns_.store(now, std::memory_order_relaxed);
    has_descriptors();
  }
  if (lost_descriptors_.load(std::memory_order_relaxed)) return true;
  std::int64_t last = load_acquire(header_.last_check_ns);
  if (last >= 0 && last <= now && now - last < interval_ns) return needs_recovery(header_);
  if (!compare_swap(header_.last_check_ns, last, now)) return needs_recovery(header_);  // another process is checking
  const std::uint32_t high = used_slots();
  for (std::uint32_t number = 0; number < high; ++number) {
    if (is_status(number, ParticipantStatus::kFree)) continue;
    if (!is_owner_alive(number)) {
      // A slot that was freed or reused between the two checks is no death, but the reconcile checks again anyway.
      request_recovery(header_);
      break;
    }
  }
  if (load_acquire(header_.abandoned_channels) != 0) request_recovery(header_);
  return needs_recovery(header_);
}

// Takes a byte lock, and the slot with it. Prefers slots that their last owner freed.
Result<ReservedSlot> Participants::claim(Claimable slots) {
  if (lost_descriptors_.load(std::memory_order_acquire)) return check_descriptors().error();
  const auto file = file_.get("cannot use an arena");
  if (!file) return file.error();
  auto lock = reopen(*file);
  if (!lock) return std::move(lock).error();
  for (const bool stale : {false, true}) {
    if (stale && slots == Claimable::kFree) break;
    for (std::uint32_t number = 0; number < kMaxParticipants; ++number) {
      if (is_status(number, ParticipantStatus::kFree) == stale) continue;
      auto locked = try_lock_byte(lock->get(), number);
      if (!locked) return std::move(locked).error();
      if (!*locked) continue;
      if (is_status(number, ParticipantStatus::kFree) == stale) {  // changed hands since the first check
        Status unlocked = unlock_byte(lock->get(), number);
        if (!unlocked) return std::move(unlocked).error();
        continue;
      }
      auto identity = occupy(number, stale ? ParticipantStatus::kStale : ParticipantStatus::kAttached);
      if (!identity) return std::move(identity).error();
      return ReservedSlot{*identity, std::move(*lock)};
    }
  }
  return Error{Code::kUnavailable, "all " + std::to_string(kMaxParticipants) +
                                       " participant slots of this arena are taken by live processes"};
}

Result<Identity> Participants::occupy(std::uint32_t number, ParticipantStatus status) {
  SHMTREE_DCHECK(number < kMaxParticipants && status != ParticipantStatus::kFree);
  const auto file = file_.get("cannot use an arena");
  if (!file) return file.error();
  Status committed = commit_pages(*file, kHeaderBytes + number * sizeof(Participant), sizeof(Participant));
  if (!committed) return std::move(committed).error();
  Participant& mine = slot(number);
  std::uint32_t generation = (load_relaxed(mine.generation) + 1) & 0xfffffu;
  if (generation == 0) generation = 1;  // identity 0 is kNoIdentity
  store_relaxed(mine.pid, process_id());
  store_relaxed(mine.attached_ns, monotonic_ns());
  for (Wait& left : mine.waits) store_relaxed(left.what, static_cast<std::uint32_t>(WaitFor::kNothing));
  store_relaxed(mine.wake_entries, 0u);
  store_relaxed(mine.hub_address, std::uint64_t{0});
  write_name(mine);
  store_release(mine.generation, generation);
  store_release(mine.status, static_cast<std::uint32_t>(status));
  std::atomic<std::uint32_t>& high = header_.participants_high;
  std::uint32_t seen = load_acquire(high);
  while (seen <= number && !compare_swap(high, seen, number + 1)) {
  }
  return make_identity(number, generation);
}

Identity Participants::enroll(ReservedSlot claimed, std::uint32_t forks) {
  SHMTREE_DCHECK(claimed.identity != kNoIdentity && claimed.lock.valid());
  const std::lock_guard guard(mutex_);
  if (const Identity existing = load_identity(); existing != kNoIdentity) {  // another thread was faster
    store_release(slot_of_identity(claimed.identity).status, static_cast<std::uint32_t>(ParticipantStatus::kFree));
    return existing;
  }
  if (load_acquire(forks_) != forks) keep_lock_from_children(claimed);
  become(std::move(claimed));
  return load_identity();
}

void Participants::become(ReservedSlot claimed) noexcept {
  SHMTREE_DCHECK(claimed.lock.valid() == (claimed.identity != kNoIdentity));
  liveness_fd_ = CheckedFd(std::move(claimed.lock));
  identity_.store(claimed.identity, std::memory_order_release);
}

// Moves the lock to an open file description of its own. A lock lives as long as any descriptor of its description.
// Descriptors of the old one may be in the parent that claimed the slot, and in children forked before enroll().
void Participants::keep_lock_from_children(ReservedSlot& claimed) const noexcept {
  try {
    const auto file = file_.get("cannot use an arena");
    if (!file) return;
    auto own = reopen(*file);
    if (own && move_byte_lock(claimed.lock.get(), own->get(), slot_of(claimed.identity)))
      claimed.lock = std::move(*own);
  } catch (const std::bad_alloc&) {  // keeps the old descriptor, which works as well
  }
}

void Participants::adopt(Identity identity, UniqueFd lock) noexcept {
  const std::lock_guard guard(mutex_);
  if (load_identity() != kNoIdentity || !lock.valid()) return;
  Participant& mine = slot_of_identity(identity);
  if (load_acquire(mine.generation) != generation_of(identity)) return;
  ReservedSlot claimed{identity, std::move(lock)};
  keep_lock_from_children(claimed);
  store_relaxed(mine.pid, process_id());
  write_name(mine);
  become(std::move(claimed));
}

void Participants::abandon(ReservedSlot claimed) noexcept {
  if (!claimed.lock.valid()) return;
  Participant& theirs = slot_of_identity(claimed.identity);
  if (load_acquire(theirs.generation) != generation_of(claimed.identity)) return;
  store_release(theirs.status, static_cast<std::uint32_t>(ParticipantStatus::kDetached));
}

void Participants::note_started(Identity claimed, int pid) noexcept {
  Participant& theirs = slot_of_identity(claimed);
  std::int32_t expected = process_id();
  if (load_acquire(theirs.generation) == generation_of(claimed)) compare_swap(theirs.pid, expected, std::int32_t{pid});
}

int Participants::known_pid(std::uint32_t number) const noexcept {
  const Participant& owner = slot(number);
  const std::uint32_t starting = load_acquire(owner.starting);
  return starting != 0 && starting == load_acquire(owner.generation) ? 0 : load_relaxed(owner.pid);
}

void Participants::detach() noexcept {
  const Identity me = current();
  if (me == kNoIdentity) return;
  store_release(slot_of_identity(me).status, static_cast<std::uint32_t>(ParticipantStatus::kDetached));
}

// Frees the slot if it is clean. Otherwise a process that finds the lock released sweeps it.
void Participants::leave() noexcept {
  const Identity me = current();
  if (me == kNoIdentity) return;
  Participant& mine = slot_of_identity(me);
  bool deferred = load_acquire(mine.deferred_overflow) != 0;
  for (const auto& block : mine.deferred_frees) deferred = deferred || load_acquire(block) != 0;
  const bool clean = is_status(slot_of(me), ParticipantStatus::kAttached) && !deferred;
  store_release(mine.status,
                static_cast<std::uint32_t>(clean ? ParticipantStatus::kFree : ParticipantStatus::kDetached));
  const std::lock_guard guard(mutex_);
  liveness_fd_.reset();
  identity_.store(kNoIdentity, std::memory_order_release);
}

bool Participants::set_process_name(std::string_view name) noexcept {
  std::uint64_t words[kNameWords] = {};
  const std::size_t fits = std::min(name.size(), sizeof words);
  std::memcpy(words, name.data(), fits < name.size() ? platform::utf8_prefix(name.substr(0, fits)) : fits);
  bool is_new = false;
  for (std::uint32_t i = 0; i < kNameWords; ++i)
    is_new |= g_name[i].exchange(words[i], std::memory_order_relaxed) != words[i];
  return is_new;
}

void Participants::note_process_name() noexcept {
  const Identity me = current();
  if (me != kNoIdentity) write_name(slot_of_identity(me));
}

void Participants::set_pinned(bool pinned) noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header().arena_lock));
  const Identity me = current();
  if (me != kNoIdentity) store_release(slot_of_identity(me).pinned, pinned ? generation_of(me) : 0u);
}

// A pin that an earlier owner of the slot left does not count. The pin of a dead owner counts until a reconcile.
bool Participants::is_pinned() const noexcept {
  const std::uint32_t high = used_slots();
  for (std::uint32_t number = 0; number < high; ++number) {
    const std::uint32_t pinned = load_acquire(slot(number).pinned);
    if (pinned != 0 && pinned == load_acquire(slot(number).generation) &&
        !is_status(number, ParticipantStatus::kFree)) {
      return true;
    }
  }
  return false;
}

bool Participants::is_pinned_here() const noexcept {
  const Identity me = current();
  return me != kNoIdentity && load_relaxed(slot_of_identity(me).pinned) == generation_of(me);
}

// Does not claim stale slots: sweeping them would take locks. Marks the child as starting, so that a report of its
// early death does not name its parent.
Identity Participants::claim_for_child(bool leaving) noexcept {
  SHMTREE_DCHECK(!child_.lock.valid());
  child_ = ReservedSlot{};
  if (leaving || load_identity() == kNoIdentity) return kNoIdentity;
  try {
    if (auto claimed = claim(Claimable::kFree)) {
      child_ = std::move(*claimed);
      store_relaxed(slot_of_identity(child_.identity).starting, generation_of(child_.identity));
    }
  } catch (const std::bad_alloc&) {
  }
  return child_.identity;
}

// The child's copy of the descriptor keeps the lock. If fork() failed, no process has it, and the slot is found dead.
void Participants::after_fork_in_parent() noexcept {
  child_ = ReservedSlot{};
  add(forks_, 1u);
}

bool Participants::after_fork_in_child(bool leaving) noexcept {
  // The child does not inherit the thread that leaves the arena, so no thread would free the child's slot.
  if (leaving) abandon(std::exchange(child_, ReservedSlot{}));
  const Identity me = child_.identity;
  become(std::exchange(child_, ReservedSlot{}));  // closes the copy of the parent's lock, which keeps it alive
  if (me == kNoIdentity) return false;
  Participant& mine = slot_of_identity(me);
  store_relaxed(mine.pid, process_id());
  store_release(mine.starting, 0u);
  return true;
}

void Participants::forget() noexcept {
  become(ReservedSlot{});
}

// --- SleepNote

SleepNote::SleepNote(const SleepReason& reason, std::int64_t since_ns, std::int64_t now_ns,
                     std::uint32_t threads) noexcept
    : reason_(reason), me_(reason.participants.current()) {
  if (me_ == kNoIdentity) return;
  Participant& mine = reason.participants.slot_of_identity(me_);
  entry_ = take_entry(mine);
  if (entry_ == nullptr) return;
  if (threads != 0) store_relaxed(mine.threads, threads);
  store_relaxed(entry_->about, reason.about);
  store_relaxed(entry_->since_ns, since_ns);
  store_relaxed(entry_->thread, thread_id());
  const std::uint32_t for_ever = threads != 0 ? kWaitsForEver : 0;
  store_seq_cst(entry_->what,
                static_cast<std::uint32_t>(reason.what) | for_ever);  // the entry is complete before the bit is set
  if (reason.time != nullptr) begin(*reason.time, now_ns);
}

// A child that was forked in a signal handler does not sleep, and must not change its parent's words.
SleepNote::~SleepNote() {
  if (entry_ == nullptr || reason_.participants.current() != me_) return;
  store_seq_cst(entry_->what, static_cast<std::uint32_t>(WaitFor::kNothing));
  if (reason_.time != nullptr) end(*reason_.time);
}

void SleepNote::begin(SleepTime& time, std::int64_t now_ns) const noexcept {
  SHMTREE_DCHECK(me_ != kNoIdentity && entry_ != nullptr);
  time.sleepers.add(slot_of(me_));
  std::int64_t then = load_acquire(time.since_ns);
  if (then != 0 && since(then, now_ns) <= kMaxUncountedNs) return;
  compare_swap(time.since_ns, then, now_ns);
}

// Other threads may begin at any moment: each sets its bit and then reads `since_ns`. This thread changes `since_ns`
// and then reads the bits again. So at least one of them opens it.
void SleepNote::end(SleepTime& time) const noexcept {
  const std::int64_t now = monotonic_ns();
  while (!others_of_process_sleep()) {
    time.sleepers.remove(slot_of(me_));
    if (!others_of_process_sleep()) break;
    time.sleepers.add(slot_of(me_));  // another thread began, and may have seen the bit set; it may have ended, too
  }
  count_until(time, now);
  if (!time.sleepers.is_empty()) return;
  const std::uint64_t more = since(exchange_seq_cst(time.since_ns, std::int64_t{0}), now);
  if (more != 0) add(time.slept_ns, more);
  if (!time.sleepers.is_empty()) open(time, now);
}

bool SleepNote::others_of_process_sleep() const noexcept {
  for (const Wait& other : reason_.participants.slot_of_identity(me_).waits) {
    const WaitFor what = what_of_wait(load_seq_cst(other.what));
    if (load_relaxed(other.about) == reason_.about && is_counted_with(what, reason_.what)) return true;
  }
  return false;
}

}  // namespace shmtree::memory
