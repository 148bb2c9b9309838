// Copies that let other threads run meanwhile, when they are worth it.
#pragma once

#include <cstddef>
#include <cstring>

#include "bindings/gil.h"
#include "bindings/python_api.h"

namespace shmtree::python {

// Giving up the GIL and asking for it again costs about as much as copying some KiB.
inline constexpr std::size_t kReleaseGilBytes = 64 << 10;

// Needs the GIL; neither side may be reachable by other threads in a way that lets it go away.
inline void copy_large(void* out, const void* in, std::size_t bytes) {
  if (bytes <= kReleaseGilBytes) {
    if (bytes != 0) std::memcpy(out, in, bytes);
    return;
  }
  const WithoutGil unlocked;
  std::memcpy(out, in, bytes);
}

}  // namespace shmtree::python
