// operator delete of a program whose operator new takes from malloc, and what such an operator new has to be marked
// with. For one file of each program: these replace those of the whole program.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

// Inlined into a caller, one of the two would stand beside the other's call, and compilers take that for a mismatch.
#define SHMTREE_REPLACES_ALLOCATION [[gnu::noinline]]

SHMTREE_REPLACES_ALLOCATION void operator delete(void* memory) noexcept {
  std::free(memory);
}
SHMTREE_REPLACES_ALLOCATION void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
SHMTREE_REPLACES_ALLOCATION void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
SHMTREE_REPLACES_ALLOCATION void operator delete[](void* memory) noexcept {
  std::free(memory);
}
SHMTREE_REPLACES_ALLOCATION void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
SHMTREE_REPLACES_ALLOCATION void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
SHMTREE_REPLACES_ALLOCATION void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
SHMTREE_REPLACES_ALLOCATION void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
