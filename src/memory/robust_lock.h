// A lock in shared memory that outlives its owners: a futex word that names its owner, who is looked at when it keeps
// one waiting.
//
// Invariants:
//   - The word is 0 or names the one owner; kContended besides, when somebody may sleep on it.
//   - Only its owner lets go of it, but a dead or impossible owner's is taken over by compare-and-swap. Whoever does
//     that asks for a recovery: what the lock guards may be half changed.
//   - Letting go is a full barrier, its half of a Dekker handshake: what was published, with such a barrier, before the
//     word was seen taken is seen by whoever lets go of it and looks afterwards.
//
// An object of this class is a name for the word; it is made where it is needed.
#pragma once

#include "memory/participants.h"
#include "platform/futex.h"
#include "platform/waiting.h"

namespace shmtree::memory {

class RobustLock {
 public:
  RobustLock(std::atomic<std::uint32_t>& word, Participants& participants) noexcept
      : word_(word), participants_(participants) {}

  // Whether it was free and this process has an identity to take it with.
  bool try_lock() noexcept { return try_lock_as(participants_.current()); }
  bool try_lock_as(Identity me) noexcept {
    std::uint32_t expected = 0;
    return me != kNobody && platform::compare_swap(word_, expected, kHeld | me);
  }
  // True if the word is taken and names no living participant.
  bool has_dead_owner() const noexcept;
  // Takes it, also from a dead owner, without looking at `recovery_requests`. kTimeout when a living owner keeps it for
  // 40 ms, or 2 s if it is not stopped, whatever the deadline; kInterrupted.
  Status lock(Identity me, const platform::WaitContext& wait) {
    return try_lock_as(me) ? success() : wait_and_lock(me, wait);
  }
  // The same once it was seen taken.
  Status wait_and_lock(Identity me, const platform::WaitContext& wait) {
    return wait_and_lock(word_, participants_, me, wait);
  }
  void unlock() noexcept {
    if ((platform::exchange_seq_cst(word_, 0u) & kContended) != 0) platform::futex_wake(word_, 1);
  }

 private:
  static Status wait_and_lock(std::atomic<std::uint32_t>& word, Participants& participants, Identity me,
                              const platform::WaitContext& wait);

  std::atomic<std::uint32_t>& word_;
  Participants& participants_;
};

}  // namespace shmtree::memory
