// A counter that many processes increment. It also knows how many of each process's increments are not used yet: its
// credits. Other processes can release the credits of a killed process, exactly and without a lock.
//
//   total  {count: 42 bits, slot: 10, number of the operation: 12}      slot and operation of the last change
//   part   {operation: 24 bits, change: 20, credits: 20}                one for each participant
//
// An operation first announces its change in the part. It then changes the total, which names the operation; this is
// the commit point. Last, it moves the change from `change` to `credits`. The next process that changes the total
// completes that last step first (settled()). So after a kill every process can tell if an announced operation was
// done: it was if the total names it or if it is no longer announced.
//
// Thread safety: any thread of any process. A Credits object is only a view of the shared words.
#pragma once

#include <cstdint>
#include <optional>

#include "memory/participants.h"

namespace shmtree::replay {

constexpr std::uint64_t kMaxCredits = 1 << 18;  // maximum per process
constexpr std::uint64_t kMaxCount = (std::uint64_t{1} << 42) - 1;

struct CreditWords {
  // Operation (12 bits), slot of the process that made it (10), count (42), from bit 0 on.
  alignas(64) std::atomic<std::uint64_t> total;
  // A word for each participant: credits (20 bits), change (20), operation (24).
  alignas(64) std::atomic<std::uint64_t> parts[memory::kMaxParticipants];
};

class Credits {
 public:
  explicit Credits(CreditWords& words) noexcept : words_(words) {}

  // Returns the number of increments, used or not.
  std::uint64_t count() const noexcept { return platform::load_acquire(words_.total) >> 22; }
  // Returns the number of used increments, or less while other threads change the counter.
  std::uint64_t used(std::uint32_t slots) const noexcept;
  std::uint64_t credits_of(std::uint32_t slot) const noexcept;
  bool has_any(std::uint32_t slot) const noexcept { return !is_clean(platform::load_acquire(words_.parts[slot])); }

  // The owner of the slot calls the functions below, one at a time. Once it is dead, other processes may call them.

  // Takes wanted(count) credits and returns their number. Calls `wanted` again if the count has changed. Returns 0 if
  // `wanted` does, or if the process would exceed kMaxCredits.
  template <class Wanted>
  std::uint64_t take(std::uint32_t slot, Wanted wanted) noexcept {
    for (;;) {
      const std::uint64_t before = settled();
      const std::uint64_t credits = wanted(before >> 22);
      if (credits == 0 || !has_space(slot, credits)) return 0;
      if (change(slot, before, static_cast<std::int64_t>(credits))) return credits;
    }
  }
  // Makes credits of the slot count permanently. Returns the number of credits used, at most those that the slot had.
  std::uint64_t use(std::uint32_t slot, std::uint64_t credits) noexcept;
  void give_back(std::uint32_t slot, std::uint64_t credits) noexcept;
  // Releases all credits of a dead owner. is_still() returns true while the slot is still that owner's. Returns false
  // if the slot has another owner.
  template <class IsStill>
  bool give_back_all(std::uint32_t slot, IsStill is_still) noexcept {
    for (;;) {
      const std::uint64_t before = settled();
      const std::uint64_t part = platform::load_acquire(words_.parts[slot]);
      if (!is_still()) return false;
      if (is_clean(part)) return true;
      give_back_step(slot, before, part);
    }
  }
  // Sets the count, all of it used. Requires new words that no other process has seen.
  void restore(std::uint64_t count) noexcept;
  // Resets the count to the credits that are not used yet.
  void reset(std::uint32_t slots) noexcept;

 private:
  std::uint64_t settled() noexcept;
  bool has_space(std::uint32_t slot, std::uint64_t credits) const noexcept;
  bool change(std::uint32_t slot, std::uint64_t before, std::int64_t by) noexcept;
  static bool is_clean(std::uint64_t part) noexcept;
  void give_back_step(std::uint32_t slot, std::uint64_t before, std::uint64_t part) noexcept;

  CreditWords& words_;
};

}  // namespace shmtree::replay
