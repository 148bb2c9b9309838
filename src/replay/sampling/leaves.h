// Leaves: the sampling weights of a table, in shared memory, one word for each slot of the buffer (Store::slot()).
// LeafWatch: the private record of a sampler, by which it finds the leaves that changed.
//
//   leaf      {weight: float32, low half of the ticket of its row}
//   counter   number of changes of 64 leaves (a group), and of 64 groups
//
// Invariants:
//   - A leaf is changed by compare-and-swap from a word with its ticket, so a late change never affects the next row of
//     the slot. The process that opens a chunk clears the chunk's leaves first.
//   - A writer of a leaf increments the counters (release) after the leaf, that of the group first. A sampler that sees
//     a counter unchanged has seen all changes that it counts. After a kill before the counter, other samplers keep the
//     old weight in their sums until the group changes again or they visit the leaf.
//   - Inner nodes are private to a sampler, so they need no recovery and no lock.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/layout.h"
#include "platform/atomics.h"
#include "platform/dcheck.h"

namespace shmtree::replay {

struct LeafWord {
  float weight = 0;  // 0: the row may not be sampled
  std::uint32_t ticket = 0;
};
constexpr std::uint64_t pack(LeafWord leaf) noexcept {
  return std::uint64_t{leaf.ticket} << 32 | std::bit_cast<std::uint32_t>(leaf.weight);
}
// Accepts any word: a weight that is not a positive finite number becomes 0.
constexpr float weight_of(std::uint64_t word) noexcept {
  const auto bits = static_cast<std::uint32_t>(word);
  return std::bit_cast<float>(bits - 1 < 0x7f7fffffu ? bits : 0u);
}
constexpr std::uint32_t ticket_of(std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(word >> 32);
}
static_assert(weight_of(pack({.weight = 0.5f, .ticket = 7})) == 0.5f && weight_of(pack({.weight = -1.0f})) == 0);

constexpr std::uint64_t kLineLeaves = 8;    // leaves per cache line
constexpr std::uint64_t kGroupLeaves = 64;  // leaves per counter, and counters per upper counter

// View of the shared words; cheap to copy.
class Leaves {
 public:
  static constexpr std::uint64_t bytes_for(std::uint64_t slots) noexcept {
    return words_bytes(slots) + groups_bytes(slots) + uppers_bytes(slots);
  }
  Leaves() noexcept = default;
  // Requires bytes_for(slots) bytes at `at`, aligned to a cache line.
  Leaves(std::byte* at, std::uint64_t slots) noexcept
      : words_(reinterpret_cast<std::atomic<std::uint64_t>*>(at)),
        groups_(reinterpret_cast<std::atomic<std::uint32_t>*>(at + words_bytes(slots))),
        uppers_(reinterpret_cast<std::atomic<std::uint32_t>*>(at + words_bytes(slots) + groups_bytes(slots))),
        slots_(slots) {}

  bool empty() const noexcept { return slots_ == 0; }
  std::uint64_t slots() const noexcept { return slots_; }
  std::uint64_t lines() const noexcept { return (slots_ + kLineLeaves - 1) / kLineLeaves; }
  // Words beyond the last slot, up to a full line, exist and are 0.
  std::atomic<std::uint64_t>& word(std::uint64_t slot) const noexcept {
    SHMTREE_DCHECK(slot < lines() * kLineLeaves);
    return words_[slot];
  }
  float weight(std::uint64_t slot) const noexcept { return weight_of(platform::load_relaxed(words_[slot])); }

  std::span<std::atomic<std::uint32_t>> groups() const noexcept { return {groups_, group_count(slots_)}; }
  std::span<std::atomic<std::uint32_t>> uppers() const noexcept { return {uppers_, upper_count(slots_)}; }

  // Prefetches the words that a change of the leaf writes.
  void fetch(std::uint64_t slot) const noexcept {
    platform::prefetch_for_write(&words_[slot], 1);
    platform::prefetch_for_write(&groups_[slot / kGroupLeaves], 1);
  }
  // Increments the counters. Call it after changing leaves of the slot's group.
  void changed(std::uint64_t slot) const noexcept {
    SHMTREE_DCHECK(slot < lines() * kLineLeaves);
    platform::add(groups_[slot / kGroupLeaves], 1u);
    platform::add(uppers_[slot / kGroupLeaves / kGroupLeaves], 1u);
  }

 private:
  static constexpr std::uint64_t group_count(std::uint64_t slots) noexcept {
    return (slots + kGroupLeaves - 1) / kGroupLeaves;
  }
  static constexpr std::uint64_t upper_count(std::uint64_t slots) noexcept { return group_count(group_count(slots)); }
  static constexpr std::uint64_t words_bytes(std::uint64_t slots) noexcept {
    return group_count(slots) * kGroupLeaves * 8;
  }
  static constexpr std::uint64_t groups_bytes(std::uint64_t slots) noexcept {
    return upper_count(slots) * kGroupLeaves * 4;
  }
  static constexpr std::uint64_t uppers_bytes(std::uint64_t slots) noexcept {
    return memory::round_up(upper_count(slots) * 4, 64);
  }

  std::atomic<std::uint64_t>* words_ = nullptr;
  std::atomic<std::uint32_t>*groups_ = nullptr, *uppers_ = nullptr;
  std::uint64_t slots_ = 0;
};

// Finds the lines of leaves that changed since the last check. Thread safety: one thread at a time.
class LeafWatch {
 public:
  explicit LeafWatch(Leaves leaves);

  // Takes a snapshot of the counters. The caller reads all leaves after it.
  void begin() noexcept;
  // Discards the snapshot, so that the next collect() asks for all leaves.
  void forget() noexcept { is_complete_ = false; }
  // Records a change by this process. If the group has no other change, collect() does not scan it. Call reserve()
  // first.
  void changed(std::uint64_t slot) noexcept;
  // Prefetches the private counters that changed() writes.
  void fetch(std::uint64_t slot) const noexcept {
    platform::prefetch_for_write(&groups_[slot / kGroupLeaves], 1);
    platform::prefetch_for_write(&uppers_[slot / kGroupLeaves / kGroupLeaves], 1);
  }
  void reserve(std::size_t changes) {
    if (lines_.capacity() - lines_.size() < changes) lines_.reserve(2 * (lines_.size() + changes));
  }
  // Adds a line that has to be read again. Does nothing if no memory is reserved.
  void mark_stale(std::uint64_t line) noexcept;
  bool is_of(const Leaves& leaves) const noexcept { return &leaves.word(0) == &leaves_.word(0); }
  // Adds the lines that may have changed to lines(). Returns false if reading all leaves is cheaper. It has then
  // called begin(), and the caller reads all of them.
  bool collect();
  std::vector<std::uint32_t>& lines() noexcept { return lines_; }

 private:
  void collect_groups(std::uint64_t upper);

  const Leaves leaves_;
  std::vector<std::uint32_t> groups_, uppers_;  // last seen values of the counters
  std::vector<std::uint32_t> changed_uppers_, lines_;
  bool is_complete_ = false;  // lines_ has all changes that the counters above show
};

}  // namespace shmtree::replay
