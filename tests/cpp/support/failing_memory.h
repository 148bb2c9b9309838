// Makes memory run out at a chosen allocation. Replaces operator new of the whole program, so include it in one file
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "support/catch2.h"
#include "support/malloc_delete.h"

namespace shmtree::test {

// Per thread, so that allocations of Catch and of other threads do not fail.
inline thread_local std::int64_t allocations_left = -1;  // number of allocations that still succeed; negative: all
inline thread_local bool shortage_lasts = false;         // true: all later allocations fail, too
inline thread_local bool ran_out_of_memory = false;

inline bool allocation_fails() noexcept {
  if (allocations_left < 0) return false;
  if (allocations_left > 0) {
    --allocations_left;
    return false;
  }
  ran_out_of_memory = true;
  if (!shortage_lasts) allocations_left = -1;
  return true;
}

inline void* allocate_or_fail(std::size_t bytes) noexcept {
  return allocation_fails() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}

// Runs `act` and fails its n-th allocation. Returns true if `act` got that far. Drops std::bad_alloc; the caller checks
// the resulting state.
template <class Act>
bool runs_out_at(std::int64_t n, bool lasting, Act act) {
  ran_out_of_memory = false;
  shortage_lasts = lasting;
  allocations_left = n - 1;
  try {
    act();
  } catch (const std::bad_alloc&) {
  }
  allocations_left = -1;
  return ran_out_of_memory;
}

// Fails each allocation of `act` in turn, alone and with all later ones. `prepare()` creates the state. `check(state,
// reached)` checks it afterwards; `reached` is false in the last run, in which nothing failed.
template <class Prepare, class Act, class Check>
void fail_each_allocation(Prepare prepare, Act act, Check check) {
  for (const bool lasting : {false, true}) {
    bool reached = true;
    for (std::int64_t n = 1; reached; ++n) {
      REQUIRE(n < 5'000);
      auto state = prepare();
      reached = runs_out_at(n, lasting, [&] { act(state); });
      INFO("allocation " << n << (lasting ? " and all later ones" : "") << " failed");
      check(state, reached);
    }
  }
}

}  // namespace shmtree::test

SHMTREE_REPLACES_ALLOCATION void* operator new(std::size_t bytes) {
  if (void* memory = shmtree::test::allocate_or_fail(bytes)) return memory;
  throw std::bad_alloc();
}
SHMTREE_REPLACES_ALLOCATION void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return shmtree::test::allocate_or_fail(bytes);
}
SHMTREE_REPLACES_ALLOCATION void* operator new[](std::size_t bytes) {
  return operator new(bytes);
}
SHMTREE_REPLACES_ALLOCATION void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return shmtree::test::allocate_or_fail(bytes);
}
SHMTREE_REPLACES_ALLOCATION void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  if (shmtree::test::allocation_fails()) throw std::bad_alloc();
  if (void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align)) return memory;
  throw std::bad_alloc();
}
