// Recovery as everybody uses it: locks that are taken only when derived state is right, and an identity whose slot is
// clean.
//
// Invariants:
//   - Whoever takes a lock through here has seen `recovery_requests` at 0 since, or has repaired derived state and
//   looked again.
//   - reconcile() is called holding no lock, and holds at most one channel's two and the arena's at a time. Lock order:
//     reconcile_lock < a channel's senders < its receivers < the arena's < a ring's of a Broadcast or a Latest.
//   - `recovery_requests` is cleared last, and only if nobody was found dead since the pass began.
//
// Thread safety: any thread.
#pragma once

#include "memory/reconcile_pass.h"

namespace shmtree::memory {

class Reconciler {
 public:
  Reconciler(Arena& arena, const ArenaParts& parts) noexcept
      : arena_(arena), parts_(parts), header_(parts.mapping.header()) {}

  // This process's identity; takes a slot on the first call after attach or after a fork that ran no handlers.
  // Code::kUnavailable when all 1,024 slots are taken by the living.
  Result<Identity> identity() {
    if (const Identity known = parts_.participants.current(); known != kNobody) [[likely]]
      return known;
    return take_identity();
  }
  // A slot for a process about to be started; one of a dead participant is swept first.
  Result<ReservedSlot> reserve_slot();

  // Takes the lock of a channel, a ring or the arena. First repairs derived state that is known to be wrong.
  // Errors as of RobustLock.
  Status lock(std::atomic<std::uint32_t>& word, const platform::WaitContext& wait);
  Status lock_arena(const platform::WaitContext& wait) { return lock(header_.arena_lock, wait); }
  // Rebuilds all derived state and drops what dead participants had. Call it holding no lock. Idempotent.
  Status reconcile(const platform::WaitContext& wait);
  // The same for callers that may not throw; false also for want of memory.
  bool lock_quietly(std::atomic<std::uint32_t>& word, const platform::WaitContext& wait) noexcept;
  // For a destructor, or for a caller that has another lock. Returns false if the lock is not free within 10 ms, or at
  // once if its owner is dead or derived state needs a repair.
  bool lock_briefly(std::atomic<std::uint32_t>& word) noexcept;
  bool lock_arena_quietly(const platform::WaitContext& wait) noexcept { return lock_quietly(header_.arena_lock, wait); }
  bool reconcile_quietly(const platform::WaitContext& wait) noexcept;

 private:
  Result<Identity> take_identity();
  Status reconcile_as(Identity me, const platform::WaitContext& wait);
  Status repeat_passes(Identity me, const platform::WaitContext& wait, ReconcilePass::Unfinished& unfinished);

  Arena& arena_;  // handed on to the channels' walker
  const ArenaParts parts_;
  ArenaHeader& header_;
};

}  // namespace shmtree::memory
