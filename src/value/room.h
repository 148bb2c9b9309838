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

void* take_room(std::size_t bytes);
void give_room(void* room, std::size_t bytes) noexcept;

// For std::allocate_shared: allocates at least `room` bytes behind the object.
template <class T>
struct WithRoom {
  using value_type = T;
  explicit WithRoom(std::size_t bytes) noexcept : room(bytes) {}
  template <class U>
  WithRoom(const WithRoom<U>& other) noexcept : room(other.room) {}  // NOLINT: as allocators are

  T* allocate(std::size_t count) { return static_cast<T*>(take_room(count * sizeof(T) + room)); }
  void deallocate(T* object, std::size_t count) noexcept { give_room(object, count * sizeof(T) + room); }
  bool operator==(const WithRoom&) const noexcept = default;

  std::size_t room;
};

}  // namespace shmtree::value
