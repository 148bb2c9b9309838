// A robust lock in shared memory: a futex word that names its owner. A waiter checks whether the owner is alive.
//
// Invariants:
//   - The word is 0 or names the one owner. kContended is set besides if a thread may sleep on the word.
//   - Only the owner releases the lock. A waiter takes over the lock of a dead or impossible owner by compare-and-swap,
//     and requests a recovery: what the lock guards may be half changed.
//   - A release is a full barrier, one half of a Dekker handshake. The other process publishes something, executes a
//     full barrier, and sees the word taken. Then the owner sees the publication if it checks after the release.
//
// An object only refers to the word, so it is made where it is needed.
#pragma once

#include "memory/held_locks.h"
#include "memory/participants.h"
#include "platform/futex.h"
#include "platform/waiting.h"

namespace shmtree::memory {

class RobustLock {
 public:
  RobustLock(std::atomic<std::uint32_t>& word, Participants& participants) noexcept
      : word_(word), participants_(participants) {}

  // Takes the lock if it is free. False if it is taken, or if this process has no identity.
  bool try_lock() noexcept { return try_lock_as(participants_.current()); }
  bool try_lock_as(Identity me) noexcept {
    std::uint32_t expected = 0;
    if (me == kNoIdentity || !platform::compare_swap(word_, expected, kHeld | me)) return false;
    HeldLocks::add(word_);
    return true;
  }
  // True if the word is taken and names no living participant.
  bool has_dead_owner() const noexcept;
  // Takes the lock, also from a dead owner, without checking `recovery_requests`. After the deadline, returns kTimeout
  // once a living owner has kept the lock for 40 ms if that owner is stopped, else for 2 s. Returns kInterrupted if a
  // hook ended the wait.
  Status lock(Identity me, const platform::WaitContext& wait) {
    return try_lock_as(me) ? success() : wait_and_lock(me, wait);
  }
  // Does the same without a first try. For callers that have just found the lock held.
  Status wait_and_lock(Identity me, const platform::WaitContext& wait) {
    return wait_and_lock(word_, participants_, me, wait);
  }
  void unlock() noexcept {
    HeldLocks::remove(word_);
    if ((platform::exchange_seq_cst(word_, 0u) & kContended) != 0) platform::futex_wake(word_, 1);
  }

 private:
  static Status wait_and_lock(std::atomic<std::uint32_t>& word, Participants& participants, Identity me,
                              const platform::WaitContext& wait);

  std::atomic<std::uint32_t>& word_;
  Participants& participants_;
};

}  // namespace shmtree::memory
