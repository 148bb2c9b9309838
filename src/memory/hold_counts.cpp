#include "memory/hold_counts.h"

#include <new>
#include <utility>

namespace shmtree::memory {

HoldCounts::Hold* HoldCounts::find(BlockId id) noexcept {
  if (capacity_ == 0) return nullptr;
  for (std::size_t at = bucket_of(id.value); places_[at].id != 0; at = (at + 1) & (capacity_ - 1)) {
    if (places_[at].id == id.value) return &places_[at];
  }
  return nullptr;
}

HoldCounts::Hold* HoldCounts::add(BlockId id) noexcept {
  if (Hold* known = find(id)) return known;
  if ((count_ + 1) * 2 > capacity_ && !grow()) return nullptr;
  std::size_t at = bucket_of(id.value);
  while (places_[at].id != 0) at = (at + 1) & (capacity_ - 1);
  places_[at] = Hold{id.value};
  ++count_;
  return &places_[at];
}

void HoldCounts::erase(Hold* hold) noexcept {
  // Closes the gap: whoever was pushed past its bucket by what is erased moves up.
  std::size_t gap = static_cast<std::size_t>(hold - places_.get());
  for (std::size_t at = (gap + 1) & (capacity_ - 1); places_[at].id != 0; at = (at + 1) & (capacity_ - 1)) {
    const std::size_t distance = (at - bucket_of(places_[at].id)) & (capacity_ - 1);
    if (distance >= ((at - gap) & (capacity_ - 1))) {
      places_[gap] = places_[at];
      gap = at;
    }
  }
  places_[gap] = Hold{};
  --count_;
}

void HoldCounts::clear() noexcept {
  for (std::size_t i = 0; i < capacity_; ++i) places_[i] = Hold{};
  count_ = 0;
}

bool HoldCounts::grow() noexcept {
  const std::size_t capacity = capacity_ == 0 ? 64 : capacity_ * 2;
  std::unique_ptr<Hold[]> places(new (std::nothrow) Hold[capacity]);
  if (places == nullptr) return false;
  std::swap(places, places_);
  const std::size_t old = std::exchange(capacity_, capacity);
  for (std::size_t i = 0; i < old; ++i) {
    if (places[i].id == 0) continue;
    std::size_t at = bucket_of(places[i].id);
    while (places_[at].id != 0) at = (at + 1) & (capacity_ - 1);
    places_[at] = places[i];
  }
  return true;
}

}  // namespace shmtree::memory
