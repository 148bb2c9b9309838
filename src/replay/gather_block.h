// Some rows of a batch: looked up, asked for, and copied, one after the other.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "replay/chain.h"
#include "replay/gather.h"

namespace shmtree::replay {

class GatherBlock {
 public:
  static constexpr std::size_t kMostRows = 32;

  explicit GatherBlock(const Gather& gather);

  // Asks for the words that look_up() looks at.
  static void fetch_words(const Store& store, std::span<const std::uint64_t> indices, bool with_about) noexcept;
  // Where the rows lie, and all that belongs to them. Marks those that are gone; of the others, the earliest tickets
  // that they need, if these are asked for.
  void look_up(std::span<const std::uint64_t> indices, std::span<bool> gone,
               std::span<std::uint64_t> earliest) noexcept;
  // Asks for their bytes.
  void fetch() const noexcept;
  // Copies them to the rows of `out` from `first` on. Those that are gone are filled with zeros.
  void copy(std::size_t first, std::span<std::byte* const> out) const noexcept;
  std::size_t rows() const noexcept { return rows_; }
  // No row could be found for want of address space.
  bool failed() const noexcept { return failed_; }

 private:
  // Where slots lie, and their records.
  struct Slots {
    std::array<Entry, kMostRows> entries;
    std::array<const std::byte*, kMostRows> records;

    void set(std::size_t row, const Entry& entry, const Shape& shape) noexcept {
      entries[row] = entry;
      records[row] = entry.extent == nullptr ? nullptr : entry.extent + entry.number * shape.record_bytes;
    }
  };

  bool look_up(std::size_t row, Position at, std::uint64_t& earliest) noexcept;
  bool look_ahead(std::size_t row, Position at, std::uint64_t& earliest) noexcept;
  bool look_back(Position from, std::uint32_t frames, std::span<Entry> entries, std::uint32_t& count,
                 std::uint64_t& earliest) noexcept;
  Entry entry(Position at) noexcept;
  bool is_there(std::size_t row) const noexcept { return here_.entries[row].extent != nullptr; }
  void fetch_slot(std::span<const std::size_t> columns, const Slots& slots, std::size_t row) const noexcept;
  void copy_leaves(const Slots& slots, const Leaf& leaf, std::byte* out) const noexcept;
  void copy_stacks(bool here, const Output& output, std::byte* out) const noexcept;
  template <class Number>
  void sum(const Leaf& leaf, std::byte* out) const noexcept;
  template <class Number>
  void discounts(std::byte* out) const noexcept;
  void numbers(const std::array<std::int64_t, kMostRows>& from, std::byte* out) const noexcept;

  const Gather& gather_;
  const Store& store_;
  const Chain chain_;
  std::size_t rows_ = 0;
  bool failed_ = false, all_there_ = false;
  Slots here_, after_;
  std::array<std::uint32_t, kMostRows> summed_{}, frames_here_{}, frames_after_{};
  std::array<bool, kMostRows> terminated_{};
  std::array<std::int64_t, kMostRows> streams_{}, steps_{};
  std::vector<Entry> sums_, stacks_here_, stacks_after_;  // n_step, and as many frames as there may be, of each row
};

}  // namespace shmtree::replay
