// Addresses met during one walk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shmtree::python {

// Open addressing. Empty until the first insertion and cheap to clear, since most messages insert nothing or little.
class PointerSet {
 public:
  // True when it was not there before.
  bool insert(const void* pointer) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    const void** slot = find(pointer);
    if (*slot == pointer) return false;
    *slot = pointer;
    ++count_;
    return true;
  }

  void clear() {
    if (count_ == 0) return;
    if (slots_.size() > kKeptSlots) slots_ = std::vector<const void*>();
    slots_.assign(slots_.size(), nullptr);
    count_ = 0;
  }

 private:
  static constexpr std::size_t kKeptSlots = 1024;

  const void** find(const void* pointer) noexcept {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = (reinterpret_cast<std::uintptr_t>(pointer) >> 4) * 0x9e3779b97f4a7c15u >> 20 & mask;
    while (slots_[i] != nullptr && slots_[i] != pointer) i = (i + 1) & mask;
    return &slots_[i];
  }

  void grow() {
    std::vector<const void*> old(slots_.empty() ? 32 : 2 * slots_.size(), nullptr);
    old.swap(slots_);
    for (const void* pointer : old) {
      if (pointer) *find(pointer) = pointer;
    }
  }

  std::vector<const void*> slots_;
  std::size_t count_ = 0;
};

}  // namespace shmtree::python
