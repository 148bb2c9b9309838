// The interface to recovery: takes locks only while derived state is correct, and gives the process an identity with a
// clean slot.
//
// Invariants:
//   - A thread that has taken a lock here has since seen `recovery_requests` at 0. If it was not 0, the thread has
//     repaired derived state and checked again.
//   - reconcile() is called with no lock held, and holds at most the two locks of one channel and the arena's at a
//     time. Lock order: reconcile_lock < a channel's senders < its receivers < the arena's < the ring's of a Broadcast
//     or a Latest.
//   - `recovery_requests` is cleared last, and only if no death was found since the pass began.
//
// Thread safety: any thread.
#pragma once

#include "memory/reconcile_pass.h"

namespace shmtree::memory {

class Reconciler {
 public:
  Reconciler(Arena& arena, const ArenaParts& parts) noexcept
      : arena_(arena), parts_(parts), header_(parts.mapping.header()) {}

  // Returns this process's identity. Takes a slot on the first call after attach, or after a fork without handlers.
  // Code::kUnavailable if living processes have all 1,024 slots.
  Result<Identity> identity() {
    if (const Identity me = parts_.participants.current(); me != kNoIdentity) [[likely]]
      return me;
    return take_identity();
  }
  // Reserves a slot for a process that is about to start. Sweeps the slot first if it is a dead participant's.
  Result<ReservedSlot> reserve_slot();

  // Takes the lock of a channel, a ring or the arena. First repairs derived state that is known to be wrong.
  // Errors as of RobustLock.
  Status lock(std::atomic<std::uint32_t>& word, const platform::WaitContext& wait);
  Status lock_arena(const platform::WaitContext& wait) { return lock(header_.arena_lock, wait); }
  // Rebuilds all derived state, and releases what dead participants held. Call it with no lock held. Idempotent.
  Status reconcile(const platform::WaitContext& wait);
  // The functions `..._quietly` are for callers that may not throw. They return false on any error, std::bad_alloc too.
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

  Arena& arena_;  // passed to the channel layer's walker
  const ArenaParts parts_;
  ArenaHeader& header_;
};

}  // namespace shmtree::memory
