// An allocation of a shared object that is longer than the object: room for what belongs to it.
//
// The thread that lets go of one has it ready for the next of about the same size, since that is what most messages
// need: beyond a kilobyte the heap joins and parts what is freed each time. A thread keeps few and none that are large.
//
// Thread safety: any thread; what one made another may let go of.
#pragma once

#include <cstddef>

namespace shmtree::value {

void* take_room(std::size_t bytes);
void give_room(void* room, std::size_t bytes) noexcept;

// For std::allocate_shared: `room` bytes at least follow the object.
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
