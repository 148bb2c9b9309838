// Transfers: objects that were handed to another process, and not loaded there yet. The object is an end of a channel,
// a block of memory, or a whole arena. It is in transit from the moment its handle is made until its receiver ends the
// transfer by number. A block may be that of a Latest, a Broadcast, a subscription, a replay buffer or a shared array.
//
// If the handle is in a message, the block of the message is the transfer's carrier. The transfer ends when that block
// is freed, since no process can receive the handle any more. The process that frees the block ends the transfers that
// it carries, under the arena lock and before the block's word says free. If the message is in another arena, the giver
// does so (transfers.h).
//
// Invariants: a transfer counts while its giver lives. The transfer of an end also counts for kEndLifeS seconds after a
// process found the giver dead. While the giver lives, the transfer has a reference to its block
// (BlockEntry::refcount). After that, recovery keeps the block of a channel as long as a transfer of one of its ends
// counts.
//
// The state of a transfer is one word, so each change is one store:
//   0 -> kBeingMade           the giver has claimed the entry
//   -> the kind of object     in transit
//   giver -> second           a process found the giver dead
//   -> 0                      ended
// `block` and `made_ns` change only during kBeingMade. `carrier` is 0 then, and is stored once, after the block's flag
// kCarriesTransfers and before any other process knows the message. The refcount follows the word under the arena lock,
// or by a recovery.
//
// Transfers that do not fit in the arena's header are in a chain of blocks (mapping.h).
//
// Thread safety: any thread, without locks.
#pragma once

#include <algorithm>
#include <span>

#include "memory/held_locks.h"
#include "memory/mapping.h"
#include "memory/participants.h"
#include "platform/clock.h"
#include "platform/dcheck.h"

namespace shmtree::memory {

constexpr std::uint64_t kEndLifeS = 60;

// A transfer's state. Bits 0 and 1 are the kind of object, and bit 2 says that the giver is dead. The next 30 bits are
// the giver's identity, or the second in which it was found dead. The upper 31 bits are random, not 0, and stay the
// same. A transfer's number is its first state.
constexpr std::uint64_t kGiverGone = 4;
constexpr std::uint64_t kGiverMask = 0x3fffffff;
constexpr std::uint64_t transfer_state(std::uint32_t random, Identity giver, Transferred what) noexcept {
  SHMTREE_DCHECK(random != 0 && random >> 31 == 0);
  return std::uint64_t{random} << 33 | (giver & kGiverMask) << 3 | static_cast<std::uint64_t>(what);
}
constexpr std::uint64_t state_of_gone(std::uint64_t state, std::uint64_t second) noexcept {
  return (state & ~(kGiverMask << 3)) | (second & kGiverMask) << 3 | kGiverGone;
}
constexpr Transferred transferred(std::uint64_t state) noexcept {
  return static_cast<Transferred>(state & 3);
}
constexpr bool giver_is_gone(std::uint64_t state) noexcept {
  return (state & kGiverGone) != 0;
}
constexpr Identity giver_of(std::uint64_t state) noexcept {
  return static_cast<Identity>(state >> 3 & kGiverMask);
}
constexpr bool is_same_transfer(std::uint64_t a, std::uint64_t b) noexcept {
  return a >> 33 == b >> 33 && transferred(a) == transferred(b);
}
inline std::uint64_t second_of(std::int64_t ns) noexcept {
  return static_cast<std::uint64_t>(ns) / 1'000'000'000;
}
// Returns the seconds since a process found the giver dead. The subtraction is unsigned, so a damaged state cannot
// overflow it.
constexpr std::uint64_t gone_for(std::uint64_t state, std::uint64_t now_s) noexcept {
  return (now_s - (state >> 3)) & kGiverMask;
}
// Returns true if a transfer with a dead giver still counts.
constexpr bool outlives_giver(std::uint64_t state, std::uint64_t now_s) noexcept {
  return transferred(state) != Transferred::kMemory && gone_for(state, now_s) < kEndLifeS;
}

// Decides which transfers count, for one walk. Checks the giver of consecutive transfers only once.
class Expiry {
 public:
  explicit Expiry(const Participants& participants) noexcept
      : participants_(participants), now_s_(second_of(platform::monotonic_ns())) {}

  // Returns true if the transfer counts. Records the giver's death if this is the first process to find it.
  bool counts(Transfer& transfer) noexcept {
    std::uint64_t state = platform::load_acquire(transfer.state);
    while (state != 0 && !giver_is_gone(state)) {
      if (lives(giver_of(state))) return true;
      const std::uint64_t gone = state_of_gone(state, now_s_);
      if (platform::compare_swap(transfer.state, state, gone)) state = gone;
    }
    return state != 0 && outlives_giver(state, now_s_);
  }
  std::uint64_t now_s() const noexcept { return now_s_; }

 private:
  bool lives(Identity giver) noexcept {
    if (giver != known_) lives_ = participants_.is_alive(giver);
    known_ = giver;
    return lives_;
  }
  const Participants& participants_;
  std::uint64_t now_s_;
  Identity known_ = kNoIdentity;
  bool lives_ = false;
};

// The transfers of one object.
struct InTransit {
  std::uint64_t count;
  int pid;              // giver of the oldest; 0 if it is dead
  std::int64_t age_ns;  // of the oldest
};

class TransferTable {
 public:
  TransferTable(ArenaHeader& header, const BlockTable& blocks, const Participants& participants) noexcept
      : header_(header), blocks_(blocks), participants_(participants) {}

  // Calls visit(block, transfers) for the entries in the header, with an invalid block, then for each block of the
  // chain, until it returns false.
  template <class Visit>
  Walked walk(Visit visit) const noexcept {
    if (!visit(BlockRef{}, std::span<Transfer>(header_.transfers))) return Walked::kStopped;
    return walk_chain(blocks_, platform::load_acquire(header_.more_transfers), sizeof(Transfer),
                      [&](BlockRef block, std::byte* transfers, std::uint64_t count) {
                        return visit(block, std::span<Transfer>(reinterpret_cast<Transfer*>(transfers), count));
                      });
  }
  // Calls visit(transfer) for each entry, free ones too, until it returns false.
  template <class Visit>
  Walked for_each(Visit visit) const noexcept {
    return walk([&](BlockRef, std::span<Transfer> transfers) {
      return std::all_of(transfers.begin(), transfers.end(), [&](Transfer& transfer) { return visit(transfer); });
    });
  }
  // Calls visit(state, transfer) for each transfer of `block` (packed) as `what` that counts, until it returns false.
  template <class Visit>
  Walked for_each_of(std::uint64_t block, Transferred what, Visit visit) const noexcept {
    Expiry expiry(participants_);
    return for_each([&](Transfer& transfer) {
      const std::uint64_t before = platform::load_acquire(transfer.state);
      if (before == 0 || transferred(before) != what || handed_over(transfer) != block) return true;
      if (!expiry.counts(transfer)) return true;
      const std::uint64_t now = platform::load_acquire(transfer.state);
      return !is_same_transfer(now, before) || visit(now, transfer);
    });
  }
  bool is_in_transit(std::uint64_t block, Transferred what) const noexcept {
    return for_each_of(block, what, [](std::uint64_t, const Transfer&) { return false; }) == Walked::kStopped;
  }
  InTransit in_transit(std::uint64_t block, Transferred what) const noexcept;
  // Returns the entry of that transfer; null if the transfer has ended.
  Transfer* find(std::uint64_t number) const noexcept;
  // Returns the block of the transfer, or all ones if the entry was used for another transfer meanwhile.
  static std::uint64_t handed_over(const Transfer& transfer) noexcept {
    const std::uint64_t state = platform::load_acquire(transfer.state);
    const std::uint64_t block = platform::load_relaxed(transfer.block);
    platform::fence_acquire();
    const bool is_same = state != 0 && is_same_transfer(platform::load_relaxed(transfer.state), state);
    return is_same ? block : ~std::uint64_t{0};
  }
  // Returns true if the giver was not found dead, so that the transfer has a reference to its block. Under the arena
  // lock.
  static bool has_reference(std::uint64_t state) noexcept {
    return state != 0 && transferred(state) != Transferred::kBeingMade && !giver_is_gone(state);
  }

  // Ends each transfer with a carrier for which is_lost(carrier) returns true, and calls ended(state, block) for it.
  // Under the arena lock; the caller changes the refcount.
  template <class IsLost, class Ended>
  void end_lost(IsLost is_lost, Ended ended) const noexcept {
    SHMTREE_DCHECK(HeldLocks::contains(header_.arena_lock));
    for_each([&](Transfer& transfer) {
      const std::uint64_t before = platform::load_acquire(transfer.state);
      if (before == 0 || transferred(before) == Transferred::kBeingMade) return true;
      const std::uint64_t carrier = platform::load_relaxed(transfer.carrier);
      const std::uint64_t block = platform::load_relaxed(transfer.block);
      if (carrier == 0 || !is_lost(unpack(carrier))) return true;
      // The exchange succeeds only if the words that were read are those of this transfer.
      for (std::uint64_t state = before; is_same_transfer(state, before) && state != 0;) {
        if (!platform::compare_swap(transfer.state, state, std::uint64_t{0})) continue;
        ended(state, block);
        break;
      }
      return true;
    });
  }

  // Claims an entry: a free one, else that of a transfer that no longer counts. Returns null if there is none.
  Transfer* take_entry(std::uint64_t number) const noexcept;
  // Number of entries, free ones too.
  std::uint64_t entries() const noexcept;
  // Adds a block of `count` entries in front of the chain. No other process knows the block yet.
  void add_entries(BlockRef block, std::byte* data, std::uint64_t count) const noexcept;

 private:
  Transfer* find_entry() const noexcept;

  ArenaHeader& header_;
  const BlockTable& blocks_;
  const Participants& participants_;
};

}  // namespace shmtree::memory
