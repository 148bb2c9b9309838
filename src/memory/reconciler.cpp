#include "memory/reconciler.h"

#include <new>
#include <utility>

#include "memory/event.h"
#include "memory/held_locks.h"
#include "platform/brief_wait.h"
#include "platform/dcheck.h"
#include "platform/wait_policy.h"

namespace shmtree::memory {

using namespace platform;

namespace {

constexpr int kMaxPasses = 32;
constexpr int kMaxRepairs = 8;  // repairs that lock() makes even if the deadline has passed

template <class Act>
bool quietly(Act act) noexcept {
  try {
    return act().ok();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace

Result<Identity> Reconciler::take_identity() {
  forget_parent();
  const std::uint32_t forks = parts_.participants.forks();
  auto claimed = reserve_slot();
  if (!claimed) return std::move(claimed).error();
  return parts_.participants.enroll(std::move(*claimed), forks);
}

// The slot of a dead owner is swept before it holds anything, since holder bits carry no generation.
Result<ReservedSlot> Reconciler::reserve_slot() {
  auto claimed = parts_.participants.claim(Participants::Claimable::kFreeOrStale);
  if (!claimed || !parts_.participants.is_status(slot_of(claimed->identity), ParticipantStatus::kStale)) return claimed;
  request_recovery(header_);
  Status swept = reconcile_as(claimed->identity, WaitContext{});
  if (!swept) return std::move(swept).error();
  return claimed;
}

Status Reconciler::lock(std::atomic<std::uint32_t>& word, const WaitContext& wait) {
  Identity me = parts_.participants.current();
  if (me == kNoIdentity) [[unlikely]] {
    auto taken = take_identity();
    if (!taken) return std::move(taken).error();
    me = *taken;
  }
  RobustLock lock(word, parts_.participants);
  for (int repairs = 0;; ++repairs) {
    if (!lock.try_lock_as(me)) {
      Status taken = lock.wait_and_lock(me, wait);
      if (!taken) return taken;
    }
    if (!needs_recovery(header_)) [[likely]]
      return success();
    lock.unlock();
    if (repairs >= kMaxRepairs && wait.deadline.passed()) {
      return Error{Code::kTimeout,
                   "timed out: the arena's state is still inconsistent after " + std::to_string(repairs) + " repairs"};
    }
    Status repaired = reconcile(wait);
    if (!repaired) return repaired;
  }
}

bool Reconciler::lock_quietly(std::atomic<std::uint32_t>& word, const WaitContext& wait) noexcept {
  return quietly([&] { return lock(word, wait); });
}

bool Reconciler::lock_briefly(std::atomic<std::uint32_t>& word) noexcept {
  if (needs_recovery(header_)) return false;
  RobustLock lock(word, parts_.participants);
  if (!lock.try_lock()) {
    if (lock.has_dead_owner()) return false;
    const std::int64_t began = monotonic_ns();
    for (BriefWait owner; !lock.try_lock(); owner.pause()) {
      if (needs_recovery(header_) || monotonic_ns() - began > wait_policy::kDropLockNs) return false;
    }
  }
  if (!needs_recovery(header_)) [[likely]]
    return true;
  lock.unlock();
  return false;
}

bool Reconciler::reconcile_quietly(const WaitContext& wait) noexcept {
  return quietly([&] { return reconcile(wait); });
}

Status Reconciler::reconcile(const WaitContext& wait) {
  auto me = identity();
  if (!me) return std::move(me).error();
  return reconcile_as(*me, wait);
}

Status Reconciler::reconcile_as(Identity me, const WaitContext& wait) {
  SHMTREE_DCHECK(!HeldLocks::contains(header_.reconcile_lock) && !HeldLocks::contains(header_.arena_lock));
  // Without descriptors, this process cannot tell the living from the dead.
  if (Status kept = parts_.participants.check_descriptors(); !kept) return kept;
  RobustLock lock(header_.reconcile_lock, parts_.participants);
  Status locked = lock.lock(me, wait);
  if (!locked) return locked;
  Status result = success();
  ReconcilePass::Unfinished unfinished;
  bool starved = false;  // this process has no memory for it; another one may have
  try {
    result = repeat_passes(me, wait, unfinished);
  } catch (const std::bad_alloc&) {
    starved = true;
  }
  add(header_.reconciles, std::uint64_t{1});
  lock.unlock();
  // If this process is killed from here on, recovery treats these blocks like any others that it was writing.
  for (const BlockRef& ref : unfinished) parts_.reclaimer.give_up_unfinished(ref);
  // Runs the frees that other processes deferred because `recovery_requests` kept them from the arena lock.
  if (load_seq_cst(header_.deferred_hint) != 0 && parts_.reclaimer.try_lock()) parts_.reclaimer.unlock();
  notify_all(header_.space);
  if (starved) throw std::bad_alloc();
  return result;
}

Status Reconciler::repeat_passes(Identity me, const WaitContext& wait, ReconcilePass::Unfinished& unfinished) {
  for (int pass = 0; pass < kMaxPasses; ++pass) {
    std::uint32_t epoch = load_acquire(header_.recovery_requests);
    if (epoch == 0) break;
    auto done = ReconcilePass(arena_, parts_, me, wait, unfinished).run();
    if (!done) return std::move(done).error();
    if (*done)
      compare_swap(header_.recovery_requests, epoch, 0u);  // cleared last; a death found meanwhile leaves it set
  }
  return success();
}

}  // namespace shmtree::memory
