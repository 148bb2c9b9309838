// The leaves of a table: how likely each row of a buffer is sampled, in shared memory, a word for each slot of the
// buffer (place x rows per place + number of the row). And the private look at which of them changed.
//
//   a leaf      {weight: float32, low half of the ticket of the row that it is for}
//   a counter   of changes, for each 64 leaves (a group), and for each 64 groups
//
// Invariants:
//   - A leaf of a row is changed by compare-and-swap from a word with its ticket, so that a late change never hits the
//     next row in the slot; who opened the place sets its leaves to nothing first.
//   - The counters are raised after the leaf was changed (release), the one of the group first: who sees a counter as
//     it was has seen all changes that it counts. A kill before the counter leaves others with the leaf's old weight in
//     their sums, until the group changes again or one of them comes to that leaf.
//   - Inner nodes are nobody's but a sampler's own: there is nothing to repair, and nobody to be waited for.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/layout.h"
#include "platform/atomics.h"

namespace shmtree::replay {

struct LeafWord {
  float weight = 0;  // 0: not to be sampled
  std::uint32_t ticket = 0;
};
constexpr std::uint64_t pack(LeafWord leaf) noexcept {
  return std::uint64_t{leaf.ticket} << 32 | std::bit_cast<std::uint32_t>(leaf.weight);
}
// Of any word: what is no positive number is 0.
constexpr float weight_of(std::uint64_t word) noexcept {
  const auto bits = static_cast<std::uint32_t>(word);
  return std::bit_cast<float>(bits - 1 < 0x7f7fffffu ? bits : 0u);
}
constexpr std::uint32_t ticket_of(std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(word >> 32);
}
static_assert(weight_of(pack({.weight = 0.5f, .ticket = 7})) == 0.5f && weight_of(pack({.weight = -1.0f})) == 0);

constexpr std::uint64_t kLineLeaves = 8;    // leaves of a cache line
constexpr std::uint64_t kGroupLeaves = 64;  // leaves that share a counter of changes; and such counters that share one

// A name for the words; copied as one likes.
class Leaves {
 public:
  static constexpr std::uint64_t bytes_for(std::uint64_t slots) noexcept {
    return words_bytes(slots) + groups_bytes(slots) + uppers_bytes(slots);
  }
  Leaves() noexcept = default;
  // `at`: of a cache line, and so many bytes.
  Leaves(std::byte* at, std::uint64_t slots) noexcept
      : words_(reinterpret_cast<std::atomic<std::uint64_t>*>(at)),
        groups_(reinterpret_cast<std::atomic<std::uint32_t>*>(at + words_bytes(slots))),
        uppers_(reinterpret_cast<std::atomic<std::uint32_t>*>(at + words_bytes(slots) + groups_bytes(slots))),
        slots_(slots) {}

  bool empty() const noexcept { return slots_ == 0; }
  std::uint64_t slots() const noexcept { return slots_; }
  std::uint64_t lines() const noexcept { return (slots_ + kLineLeaves - 1) / kLineLeaves; }
  // Words beyond the last slot, up to a full line, are there and 0.
  std::atomic<std::uint64_t>& word(std::uint64_t slot) const noexcept { return words_[slot]; }
  float weight(std::uint64_t slot) const noexcept { return weight_of(platform::load_relaxed(words_[slot])); }

  std::span<std::atomic<std::uint32_t>> groups() const noexcept { return {groups_, group_count(slots_)}; }
  std::span<std::atomic<std::uint32_t>> uppers() const noexcept { return {uppers_, upper_count(slots_)}; }

  // Asks for what a change of that leaf touches.
  void fetch(std::uint64_t slot) const noexcept {
    platform::prefetch_for_write(&words_[slot], 1);
    platform::prefetch_for_write(&groups_[slot / kGroupLeaves], 1);
  }
  // To be called after leaves of the slot's group were changed.
  void changed(std::uint64_t slot) const noexcept {
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

// Which lines of leaves changed since one looked last. Private: one thread at a time.
class LeafWatch {
 public:
  explicit LeafWatch(Leaves leaves);

  // All of them were looked at, from now on.
  void begin() noexcept;
  // As if nothing had been looked at.
  void forget() noexcept { is_complete_ = false; }
  // One more change, and this process's own: others need not be looked for where it is the only one. Memory for it was
  // reserved.
  void changed(std::uint64_t slot) noexcept;
  // Asks for what that touches, but for the leaf's own words.
  void fetch(std::uint64_t slot) const noexcept {
    platform::prefetch_for_write(&groups_[slot / kGroupLeaves], 1);
    platform::prefetch_for_write(&uppers_[slot / kGroupLeaves / kGroupLeaves], 1);
  }
  void reserve(std::size_t changes) {
    if (lines_.capacity() - lines_.size() < changes) lines_.reserve(2 * (lines_.size() + changes));
  }
  // A line to be looked at again; forgotten where there is no memory.
  void doubt(std::uint64_t line) noexcept;
  bool is_of(const Leaves& leaves) const noexcept { return &leaves.word(0) == &leaves_.word(0); }
  // Lines that may have changed; false when they are so many that one had better look at all (begin() was called).
  bool collect();
  std::vector<std::uint32_t>& lines() noexcept { return lines_; }

 private:
  void collect_groups(std::uint64_t upper);

  const Leaves leaves_;
  std::vector<std::uint32_t> groups_, uppers_;  // the counters as they were seen
  std::vector<std::uint32_t> changed_uppers_, lines_;
  bool is_complete_ = false;  // what was seen has come to `lines_`
};

}  // namespace shmtree::replay
