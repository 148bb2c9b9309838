// The words of all blocks as they were at one moment of a recovery pass, and a mark on each that a channel keeps.
#pragma once

#include <vector>

#include "memory/block_table.h"

namespace shmtree::memory {

class BlockSnapshot {
 public:
  // Notes every word; visit(word) of each besides.
  template <class Visit>
  void take(const BlockTable& table, Visit visit) {
    for (unsigned k = kMinClass; k <= table.geometry().max_class(); ++k) {
      const std::uint64_t entries = table.walked_entries(k);
      of_class(k).words.assign(entries, 0);
      of_class(k).marks.assign(entries, 0);
    }
    table.for_each([&](BlockId id, const BlockEntry& block) {
      if (!contains(id)) return;
      std::uint64_t& word = of_class(id.size_class()).words[id.index()];
      word = platform::load_acquire(block.word);
      visit(word);
    });
  }
  // visit(id, word) of each until one returns false.
  template <class Visit>
  void for_each(Visit visit) const {
    for (unsigned k = kMinClass; k <= kMaxClass; ++k) {
      for (std::uint64_t index = 0; index < of_class(k).words.size(); ++index) {
        if (!visit(BlockId::make(k, index), of_class(k).words[index])) return;
      }
    }
  }

  bool is_unchanged(BlockId id, std::uint64_t word) const noexcept {
    return contains(id) && of_class(id.size_class()).words[id.index()] == word;
  }
  void mark(BlockId id) noexcept {
    if (contains(id)) of_class(id.size_class()).marks[id.index()] = 1;
  }
  bool is_marked(BlockId id) const noexcept { return contains(id) && of_class(id.size_class()).marks[id.index()] != 0; }

 private:
  struct OfClass {
    std::vector<std::uint64_t> words;
    std::vector<std::uint8_t> marks;
  };
  bool contains(BlockId id) const noexcept { return id.index() < of_class(id.size_class()).words.size(); }
  OfClass& of_class(unsigned size_class) noexcept { return classes_[size_class - kMinClass]; }
  const OfClass& of_class(unsigned size_class) const noexcept { return classes_[size_class - kMinClass]; }

  OfClass classes_[kClasses];
};

}  // namespace shmtree::memory
