// Transfers: what was handed to another process, and has not been loaded there yet. An end of a channel, a block of
// memory (of a Latest, a Broadcast, a subscription, a replay buffer or a shared array), or a whole arena is in transit
// from the moment its handle is made until its receiver ends the transfer by number.
//
// Invariants: a transfer counts while its giver lives; that of an end also for kEndLifeS seconds after a process found
// the giver dead. While the giver lives, the transfer has a reference to its block (BlockEntry::refcount). After that,
// recovery keeps the block of a channel as long as a transfer of one of its ends counts.
//
// Each transfer has a word of its own, in which every change is one store: place taken (0 -> kBeingMade), in transit
// (-> what it hands over), giver found gone (the giver's identity -> the second of that), ended (-> 0). `block` and
// `made_ns` change only while the word says kBeingMade. The refcount follows the word under the arena lock, or by a
// recovery.
//
// The words that the arena's header has no place for are in a chain of blocks (block_table.h).
//
// Thread safety: any thread, without locks.
#pragma once

#include <algorithm>
#include <span>

#include "memory/block_table.h"
#include "memory/participants.h"
#include "platform/clock.h"

namespace shmtree::memory {

constexpr std::uint64_t kEndLifeS = 60;

// A transfer's state: bits 0 and 1 what it hands over, bit 2 set when the giver is gone, 30 bits of the giver's
// identity or of the second in which it was found gone, 31 random ones (not 0) that stay the same. Its number is the
// state that it begins with.
constexpr std::uint64_t kGiverGone = 4;
constexpr std::uint64_t kGiverMask = 0x3fffffff;
constexpr std::uint64_t transfer_state(std::uint32_t random, Identity giver, Transferred what) noexcept {
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
// Seconds since the giver was found gone. Unsigned: the word lies in memory that every process can write.
constexpr std::uint64_t gone_for(std::uint64_t state, std::uint64_t now_s) noexcept {
  return (now_s - (state >> 3)) & kGiverMask;
}
// Whether a transfer without a giver still counts.
constexpr bool outlives_giver(std::uint64_t state, std::uint64_t now_s) noexcept {
  return transferred(state) != Transferred::kMemory && gone_for(state, now_s) < kEndLifeS;
}

// Says which transfers count, for one walk: it checks a giver once in a row.
class Expiry {
 public:
  explicit Expiry(const Participants& participants) noexcept
      : participants_(participants), now_s_(second_of(platform::monotonic_ns())) {}

  // Notes the giver's end if it is the first to find it.
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
  Identity known_ = kNobody;
  bool lives_ = false;
};

// Transfers of one thing.
struct InTransit {
  std::uint64_t count;
  int pid;              // of the giver of the oldest; 0 when it has ended
  std::int64_t age_ns;  // of the oldest
};

class TransferTable {
 public:
  TransferTable(ArenaHeader& header, const BlockTable& blocks, const Participants& participants) noexcept
      : header_(header), blocks_(blocks), participants_(participants) {}

  // Calls visit(block, transfers) for each block, that of the header first with none, until it returns false.
  template <class Visit>
  Walked walk(Visit visit) const noexcept {
    if (!visit(BlockRef{}, std::span<Transfer>(header_.transfers))) return Walked::kStopped;
    return walk_chain(blocks_, platform::load_acquire(header_.more_transfers), sizeof(Transfer),
                      [&](BlockRef block, std::byte* transfers, std::uint64_t count) {
                        return visit(block, std::span<Transfer>(reinterpret_cast<Transfer*>(transfers), count));
                      });
  }
  // Calls visit(transfer) for each place until it returns false.
  template <class Visit>
  Walked for_each(Visit visit) const noexcept {
    return walk([&](BlockRef, std::span<Transfer> transfers) {
      return std::all_of(transfers.begin(), transfers.end(), [&](Transfer& transfer) { return visit(transfer); });
    });
  }
  // Calls visit(state, made_ns) for each that hands over `what` of `block` (packed) and counts, until it returns false.
  template <class Visit>
  Walked for_each_of(std::uint64_t block, Transferred what, Visit visit) const noexcept {
    Expiry expiry(participants_);
    return for_each([&](Transfer& transfer) {
      const std::uint64_t before = platform::load_acquire(transfer.state);
      if (before == 0 || transferred(before) != what || handed_over(transfer) != block) return true;
      if (!expiry.counts(transfer)) return true;
      const std::uint64_t now = platform::load_acquire(transfer.state);
      return !is_same_transfer(now, before) || visit(now, platform::load_relaxed(transfer.made_ns));
    });
  }
  bool is_in_transit(std::uint64_t block, Transferred what) const noexcept {
    return for_each_of(block, what, [](std::uint64_t, std::int64_t) { return false; }) == Walked::kStopped;
  }
  InTransit in_transit(std::uint64_t block, Transferred what) const noexcept;
  // The place of that transfer; null when it has none any more.
  Transfer* find(std::uint64_t number) const noexcept;
  // Whether the giver of a transfer is there, and so the transfer has a reference to a block. Under the arena lock.
  static bool has_reference(std::uint64_t state) noexcept {
    return state != 0 && transferred(state) != Transferred::kBeingMade && !giver_is_gone(state);
  }

  // Takes a place: one that is free, else that of a transfer that does not count any more. Null when there is none.
  Transfer* take_place(std::uint64_t number) const noexcept;
  // Number of places.
  std::uint64_t places() const noexcept;
  // Puts a block of `count` places, of which only its writer knows, before the others.
  void add_places(BlockRef block, std::byte* data, std::uint64_t count) const noexcept;

 private:
  // The block of a transfer as it was with its state; all ones if both changed meanwhile.
  static std::uint64_t handed_over(const Transfer& transfer) noexcept {
    const std::uint64_t state = platform::load_acquire(transfer.state);
    const std::uint64_t block = platform::load_relaxed(transfer.block);
    platform::fence_acquire();
    const bool is_same = state != 0 && is_same_transfer(platform::load_relaxed(transfer.state), state);
    return is_same ? block : ~std::uint64_t{0};
  }
  Transfer* find_place() const noexcept;

  ArenaHeader& header_;
  const BlockTable& blocks_;
  const Participants& participants_;
};

}  // namespace shmtree::memory
