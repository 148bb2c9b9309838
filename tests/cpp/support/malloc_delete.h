// Replaces operator delete, for programs that replace operator new with malloc, and defines the attribute for both.
// Include it in one file of a program only.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

// Prevents inlining. A caller that inlines only one of the two would pair malloc with delete, or new with free, and
// compilers warn about that.
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
