// Small set of numbers, for samples without repetition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "platform/dcheck.h"
#include "platform/flat_table.h"

namespace shmtree::replay {

// Requires numbers below 2^64 - 1. Throws std::bad_alloc.
class SlotSet {
 public:
  // Empties the set, and reserves space for `expected` numbers. More can be added later.
  void clear(std::size_t expected = 0) {
    table_.clear();
    if (!table_.make_space_for(expected, hash_of)) throw std::bad_alloc();
  }
  bool empty() const noexcept { return size() == 0; }
  std::size_t size() const noexcept { return table_.size(); }
  // Returns false if the set has the number already.
  bool add(std::uint64_t number) {
    SHMTREE_DCHECK(number != ~std::uint64_t{0});
    if (!table_.make_space(hash_of)) throw std::bad_alloc();
    std::uint64_t& cell = table_.slot(hash_of(number + 1), Is{number + 1});
    if (cell != 0) return false;
    table_.insert(cell, number + 1);
    return true;
  }
  template <class Visit>
  void for_each(Visit visit) const {
    table_.for_each([&](std::uint64_t cell) { visit(cell - 1); });
  }
  bool contains(std::uint64_t number) const noexcept {
    return table_.find(hash_of(number + 1), Is{number + 1}) != nullptr;
  }

 private:
  static std::uint64_t hash_of(std::uint64_t cell) noexcept { return platform::mixed(cell) >> 32; }
  struct Is {
    std::uint64_t wanted;
    bool operator()(std::uint64_t cell) const noexcept { return cell == wanted; }
  };

  platform::FlatTable<std::uint64_t> table_;  // number + 1
};

}  // namespace shmtree::replay
