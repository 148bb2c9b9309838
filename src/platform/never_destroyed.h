// The one object of its type, made when it is first asked for and never destroyed: others may outlive every static one.
#pragma once

#include <new>

namespace shmtree::platform {

template <class T>
T& never_destroyed() noexcept {
  alignas(T) static unsigned char place[sizeof(T)];
  static T* const object = new (place) T;
  return *object;
}

}  // namespace shmtree::platform
