// What one process holds: how many leases of each block it has. A hash table with open addressing and linear probing,
// so that taking and dropping a hold neither allocates nor frees. Not thread safe.
#pragma once

#include <cstddef>
#include <memory>

#include "memory/layout.h"

namespace shmtree::memory {

class HoldCounts {
 public:
  struct Hold {
    std::uint64_t id = 0;  // 0: the place is empty
    std::uint32_t generation = 0;
    std::uint32_t leases = 0;
    std::uint32_t in_flight = 0;  // begun by a receiving thread, not a lease yet
    std::uint32_t unused = 0;
  };

  Hold* find(BlockId id) noexcept;
  // The hold of `id`, added when it is not there; null when there is no memory for it.
  Hold* add(BlockId id) noexcept;
  void erase(Hold* hold) noexcept;
  void clear() noexcept;

  template <class Visit>
  void for_each(Visit visit) {
    for (std::size_t i = 0; i < capacity_; ++i) {
      if (places_[i].id != 0) visit(places_[i]);
    }
  }

 private:
  std::size_t bucket_of(std::uint64_t id) const noexcept { return (id * 0x9e3779b97f4a7c15u >> 32) & (capacity_ - 1); }
  bool grow() noexcept;

  std::unique_ptr<Hold[]> places_;
  std::size_t capacity_ = 0;  // a power of two
  std::size_t count_ = 0;
};

}  // namespace shmtree::memory
