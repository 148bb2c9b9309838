// Who takes part in an arena, this process among them, and who has died.
//
// Invariants:
//   - A participant lives while byte `slot` of the file is locked, through a descriptor of its own that the kernel
//     closes with the process. Everything else in its slot is for messages, or says how the slot was left.
//   - An identity (slot and generation) names one owner of a slot for ever. Holder bits carry no generation, so a slot
//     is used again only clean: given back so by its owner, swept by a reconcile, or claimed as stale and swept first.
//   - In a forked child this process's identity is the one that its parent claimed for it before the fork, or none.
//     Nothing of the parent's keeps the parent alive from then on.
//   - Identity kNobody releases nothing.
//
// Thread safety: any thread; those that the fork handlers call, with every fork-safe mutex held.
#pragma once

#include <algorithm>
#include <atomic>
#include <utility>

#include "memory/mapping.h"
#include "platform/checked_fd.h"
#include "platform/fork.h"

namespace shmtree::memory {

// A slot taken on behalf of a process that does not run yet (fork, spawn): it holds what `identity` is given and is
// alive while `lock` is open anywhere.
struct ReservedSlot {
  Identity identity = kNobody;
  platform::UniqueFd lock;
};

class Participants {
 public:
  explicit Participants(Mapping& mapping) noexcept : mapping_(mapping) {}

  // This process's identity; kNobody when it has none, as in a child of a fork that ran no handlers.
  Identity current() const noexcept { return platform::process_stamp() == 0 ? kNobody : load_identity(); }
  bool is_alive(Identity identity) const noexcept;
  bool is_owner_alive(std::uint32_t number) const noexcept {
    return is_alive(make_identity(number, platform::load_acquire(slot(number).generation)));
  }
  Participant& slot(std::uint32_t number) const noexcept { return mapping_.participant(number); }
  Participant& slot_of_identity(Identity identity) const noexcept { return slot(slot_of(identity)); }
  // Slots that were ever used.
  std::uint32_t used_slots() const noexcept {
    return std::min(platform::load_acquire(mapping_.header().participants_high), kMaxParticipants);
  }
  bool is_status(std::uint32_t number, ParticipantStatus status) const noexcept {
    return platform::load_acquire(slot(number).status) == static_cast<std::uint32_t>(status);
  }
  ArenaHeader& header() const noexcept { return mapping_.header(); }
  // Looks at everybody when nobody has for `interval_ns`; true when a recovery is asked for, as it is when
  // somebody was found dead. Also true if has_descriptors() is not: the recovery then fails with that error.
  bool check(std::int64_t interval_ns) noexcept;
  // Whether the program has left this process the descriptors of the arena. If not, this process counts as dead for
  // the others, so it gives up its identity for good, and each later call that needs an identity fails with the error
  // that check_descriptors() returns. 0.5 us.
  bool has_descriptors() noexcept;
  Status check_descriptors();

  enum class Claimable { kFree, kFreeOrStale };
  // Takes a free slot, or the slot of a dead participant. The latter is kStale: a reconcile must sweep it before it
  // holds anything. Code::kUnavailable when living processes have all 1,024.
  Result<ReservedSlot> claim(Claimable slots);
  // How often this process has forked; before claim(), for enroll().
  std::uint32_t forks() const noexcept { return platform::load_acquire(forks_); }
  // Makes this process the owner of a slot that it has claimed since it had forked so often. The slot is given back
  // when another thread was faster.
  Identity enroll(ReservedSlot claimed, std::uint32_t forks);
  // The same with a slot that this process's parent claimed. Ignored when it has an identity already. The parent's
  // copies of `lock` do not keep it alive from then on.
  void adopt(Identity identity, platform::UniqueFd lock) noexcept;
  // Nobody will adopt the slot: not a death.
  void abandon(ReservedSlot claimed) noexcept;
  // Of a slot that this process keeps: its children, which have a copy of the descriptor, do not keep it alive.
  void keep_lock_from_children(ReservedSlot& claimed) const noexcept;
  // The process that a claimed slot is for was started; it is named so until it adopts the slot itself.
  void note_started(Identity claimed, int pid) noexcept;
  // Ends participation, not holds: this process is about to exit normally.
  void detach() noexcept;
  // Ends both: no lease of this process is left.
  void leave() noexcept;

  // Under the arena lock: this process has pages registered for DMA from now on, or none any more.
  void set_pinned(bool pinned) noexcept;
  // Whether anybody has.
  bool is_pinned() const noexcept;
  bool is_pinned_here() const noexcept;

  // The fork handlers. Before the fork: claims a slot for the child, which it names; kNobody when there is none.
  Identity claim_for_child(bool leaving) noexcept;
  void after_fork_in_parent() noexcept;
  // True when this process has taken over the slot that was claimed for it; if its parent was about to leave, nobody
  // would, and the slot is given back.
  bool after_fork_in_child(bool leaving) noexcept;
  // In a child of a fork that ran no handlers: it is nobody.
  void forget() noexcept;

 private:
  Identity load_identity() const noexcept { return identity_.load(std::memory_order_acquire); }
  Result<Identity> occupy(std::uint32_t number, ParticipantStatus status);
  void become(ReservedSlot claimed) noexcept;

  Mapping& mapping_;
  std::atomic<Identity> identity_{kNobody};
  platform::ForkSafeMutex mutex_;    // who changes the identity
  platform::CheckedFd liveness_fd_;  // under mutex_
  std::atomic<bool> lost_descriptors_{false};
  std::atomic<std::int64_t> descriptors_checked_ns_{0};
  ReservedSlot child_;  // between the fork handlers
  std::atomic<std::uint32_t> forks_{0};
};

// Who was dead when a recovery pass began.
class DeadParticipants {
 public:
  explicit DeadParticipants(Participants& participants) noexcept : participants_(participants) {}

  // Looks at every slot. False when one changes hands meanwhile: the next pass sees who has it.
  bool find(const platform::CheckedFd& file) noexcept;

  // A participant that has died or exited, or whose slot has a new owner that holds nothing yet.
  bool contains(std::uint32_t slot) const noexcept { return (masks_[slot / 64] & ParticipantSet::bit_of(slot)) != 0; }
  // The bits of the dead in a word of a set.
  std::uint64_t mask(std::uint32_t word) const noexcept { return masks_[word]; }
  // Dead, and it had not detached.
  bool was_killed(std::uint32_t slot) const noexcept {
    return contains(slot) && slots_[slot].status != static_cast<std::uint32_t>(ParticipantStatus::kDetached);
  }
  // Whether the writer was dead then. One that died since may have published the block after its channel was walked;
  // its own death brings the next pass.
  bool is_dead_writer(Identity writer) const noexcept;
  bool hold_all_of(const ParticipantSet& set) const noexcept;
  // Their slots become free; a stale one is swept now, and its new owner's.
  void free_slots() noexcept;

 private:
  struct Slot {
    std::uint32_t generation, status;
    bool is_unlocked;  // its last owner is dead
  };
  Participants& participants_;
  std::uint64_t masks_[kParticipantWords]{};
  Slot slots_[kMaxParticipants]{};
};

}  // namespace shmtree::memory
