// A number that many processes count up, of which each knows its part that is not used yet: credits. Those of a killed
// process are given back, exactly, without a lock.
//
//   total  {count: 42 bits, slot: 10, number of the operation: 12}      who changed it last, and by which operation
//   part   {operation: 24 bits, change: 20, credits: 20}                of each participant
//
// An operation announces its change in the part, then changes the total, which names it, and then the part has it: the
// change goes from `change` to `credits`. Whoever changes the total next has done the last step first, for whoever it
// was (settle). So of an operation that was announced by somebody who was killed everybody can tell whether it was
// done: it was when the total names it, and else when it is not announced any more.
//
// Thread safety: any thread of any process. An object is a name for the words.
#pragma once

#include <cstdint>
#include <optional>

#include "memory/participants.h"

namespace shmtree::replay {

constexpr std::uint64_t kMostCredits = 1 << 18;  // of a process
constexpr std::uint64_t kMostCount = (std::uint64_t{1} << 42) - 1;

struct CreditWords {
  alignas(64) std::atomic<std::uint64_t> total;
  alignas(64) std::atomic<std::uint64_t> parts[memory::kMaxParticipants];
};

class Credits {
 public:
  explicit Credits(CreditWords& words) noexcept : words_(words) {}

  // What was given: used or not.
  std::uint64_t count() const noexcept { return platform::load_acquire(words_.total) >> 22; }
  // What was given and used. Never more than is true.
  std::uint64_t used(std::uint32_t slots) const noexcept;
  std::uint64_t credits_of(std::uint32_t slot) const noexcept;
  bool has_any(std::uint32_t slot) const noexcept { return !is_clean(platform::load_acquire(words_.parts[slot])); }

  // Those below are of the slot's owner, one at a time, or of others once that is dead.

  // So many credits as `wanted` says of the count, which is asked again when the count has changed; how many they are.
  // None when it says so, or when the process has too many already.
  template <class Wanted>
  std::uint64_t take(std::uint32_t slot, Wanted wanted) noexcept {
    for (;;) {
      const std::uint64_t before = settled();
      const std::uint64_t credits = wanted(before >> 22);
      if (credits == 0 || !has_room(slot, credits)) return 0;
      if (change(slot, before, static_cast<std::int64_t>(credits))) return credits;
    }
  }
  // They count for ever; how many the slot had of these.
  std::uint64_t use(std::uint32_t slot, std::uint64_t credits) noexcept;
  void give_back(std::uint32_t slot, std::uint64_t credits) noexcept;
  // Of an owner that is dead: `is_still` says whether the slot is still its. False when it is not.
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
  // Of words that nobody else has yet, and of which no part was given: so many are used.
  void restore(std::uint64_t count) noexcept;
  // The count begins anew; credits that are not used yet count.
  void reset(std::uint32_t slots) noexcept;

 private:
  std::uint64_t settled() noexcept;
  bool has_room(std::uint32_t slot, std::uint64_t credits) const noexcept;
  bool change(std::uint32_t slot, std::uint64_t before, std::int64_t by) noexcept;
  static bool is_clean(std::uint64_t part) noexcept;
  void give_back_step(std::uint32_t slot, std::uint64_t before, std::uint64_t part) noexcept;

  CreditWords& words_;
};

}  // namespace shmtree::replay
