// Allocates a shared object together with extra memory behind it.
//
// A thread keeps the memory that it frees for its next object of about the same size, because most messages need that.
// The heap is slower: it coalesces and splits freed memory above 1 KiB each time. A thread keeps only a few
// allocations, and no large ones.
//
// Thread safety: any thread. A thread may free what another one has allocated.
#pragma once

#include <cstddef>

namespace shmtree::value {

void* allocate_memory(std::size_t bytes);
void free_memory(void* extra, std::size_t bytes) noexcept;

// For std::allocate_shared: allocates at least `extra` bytes behind the object.
template <class T>
struct TrailingAllocator {
  using value_type = T;
  explicit TrailingAllocator(std::size_t bytes) noexcept : extra(bytes) {}
  template <class U>
  TrailingAllocator(const TrailingAllocator<U>& other) noexcept : extra(other.extra) {}  // NOLINT: as allocators are

  T* allocate(std::size_t count) { return static_cast<T*>(allocate_memory(count * sizeof(T) + extra)); }
  void deallocate(T* object, std::size_t count) noexcept { free_memory(object, count * sizeof(T) + extra); }
  bool operator==(const TrailingAllocator&) const noexcept = default;

  std::size_t extra;
};

}  // namespace shmtree::value
