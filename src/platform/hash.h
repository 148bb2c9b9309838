// Hash functions that spread numbers and addresses over the entries of a table.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

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

}  // namespace shmtree::platform
