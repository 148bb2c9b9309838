// A hash table with open addressing and linear probing, for small trivially copyable entries.
//
// A value-initialised entry is free: an integer 0, or a struct with an is_free() that returns true. The caller hashes
// and compares, so an entry may be an index into a list that contains the key. Lookup, erase and clear never allocate.
// Lack of memory is a result, not an exception. Thread safety: none.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "platform/dcheck.h"

namespace shmtree::platform {

// Mixes a number by Fibonacci hashing. The highest bits are the best ones.
constexpr std::uint64_t mixed(std::uint64_t number) noexcept {
  return number * 0x9e3779b97f4a7c15u;
}

// Returns the index for an object's address in a cache of kSlots entries, a power of two.
template <std::size_t kSlots>
std::size_t slot_of_address(const void* object) noexcept {
  static_assert(kSlots > 1 && std::has_single_bit(kSlots));
  constexpr int kShift = 64 - std::countr_zero(kSlots);
  return mixed(reinterpret_cast<std::uintptr_t>(object) >> 4) >> kShift;
}

template <class Entry>
class FlatTable {
  static_assert(std::is_trivially_copyable_v<Entry>);

 public:
  std::size_t size() const noexcept { return size_; }
  std::size_t slots() const noexcept { return capacity_; }

  // Call it before insert(). Keeps half of the entries free. `hash_of(entry)` is called for the present entries if the
  // table grows. False if there is no memory; nothing has changed then.
  template <class HashOf>
  [[nodiscard]] bool make_space(HashOf hash_of) noexcept {
    return 2 * (size_ + 1) <= capacity_ || grow(std::max(kMinSlots, 2 * capacity_), hash_of);
  }
  // Makes space for `entries` in total, like make_space().
  template <class HashOf>
  [[nodiscard]] bool make_space_for(std::size_t entries, HashOf hash_of) noexcept {
    std::size_t slots = std::max(kMinSlots, capacity_);
    while (slots < 2 * entries) slots *= 2;
    return slots == capacity_ || grow(slots, hash_of);
  }

  // Returns the entry of that hash for which `matches(entry)` is true, or a free entry in which to store it. Requires
  // space (make_space()).
  template <class Matches>
  [[gnu::always_inline]] Entry& slot(std::uint64_t hash, Matches matches) const noexcept {
    std::size_t at = hash & (capacity_ - 1);
    while (!is_free(slots_[at]) && !matches(std::as_const(slots_[at]))) at = (at + 1) & (capacity_ - 1);
    return slots_[at];
  }
  // Stores an entry in the free entry that slot() returned for it.
  void insert(Entry& slot, const Entry& entry) noexcept {
    SHMTREE_DCHECK(is_free(slot) && !is_free(entry) && 2 * (size_ + 1) <= capacity_);
    slot = entry;
    ++size_;
  }
  // Null if there is none.
  template <class Matches>
  Entry* find(std::uint64_t hash, Matches matches) const noexcept {
    if (size_ == 0) return nullptr;
    Entry& found = slot(hash, matches);
    return is_free(found) ? nullptr : &found;
  }
  // Removes an entry, and moves entries back that had been displaced by it.
  template <class HashOf>
  void erase(Entry* entry, HashOf hash_of) noexcept {
    SHMTREE_DCHECK(size_ != 0 && !is_free(*entry));
    const std::size_t mask = capacity_ - 1;
    std::size_t gap = static_cast<std::size_t>(entry - slots_.get());
    for (std::size_t at = (gap + 1) & mask; !is_free(slots_[at]); at = (at + 1) & mask) {
      const std::size_t distance = (at - hash_of(std::as_const(slots_[at]))) & mask;
      if (distance < ((at - gap) & mask)) continue;
      slots_[gap] = slots_[at];
      gap = at;
    }
    slots_[gap] = Entry{};
    --size_;
  }

  void clear() noexcept {
    if (size_ == 0) return;
    std::fill_n(slots_.get(), capacity_, Entry{});
    size_ = 0;
  }
  // Clears the table, and frees its memory if it has more than `max_slots` entries.
  void clear_to(std::size_t max_slots) noexcept {
    if (capacity_ <= max_slots) return clear();
    slots_.reset();
    capacity_ = size_ = 0;
  }

  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t i = 0; i < capacity_; ++i) {
      if (!is_free(slots_[i])) visit(slots_[i]);
    }
  }

  static bool is_free(const Entry& entry) noexcept {
    if constexpr (std::is_integral_v<Entry>) {
      return entry == 0;
    } else {
      return entry.is_free();
    }
  }

 private:
  static constexpr std::size_t kMinSlots = 64;

  template <class HashOf>
  [[gnu::noinline]] bool grow(std::size_t capacity, HashOf hash_of) noexcept {
    std::unique_ptr<Entry[]> before(new (std::nothrow) Entry[capacity]());
    if (before == nullptr) return false;
    before.swap(slots_);
    const std::size_t old = std::exchange(capacity_, capacity);
    for (std::size_t i = 0; i < old; ++i) {
      if (!is_free(before[i])) slot(hash_of(std::as_const(before[i])), [](const Entry&) { return false; }) = before[i];
    }
    return true;
  }

  std::unique_ptr<Entry[]> slots_;
  std::size_t capacity_ = 0;  // a power of two, or 0
  std::size_t size_ = 0;
};

}  // namespace shmtree::platform
