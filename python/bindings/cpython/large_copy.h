// Copies that let other threads run meanwhile, when they are worth it.
#pragma once

#include <cstddef>

#include "bindings/cpython/gil.h"
#include "bindings/cpython/python_api.h"
#include "platform/copy.h"
#include "platform/file.h"
#include "platform/huge_pages.h"

namespace shmtree::python {

// Needs the GIL; neither side may be reachable by other threads in a way that lets it go away.
inline void copy_large(void* out, const void* in, std::size_t bytes) {
  // Giving up the GIL and asking for it again costs about as much as copying some KiB.
  const WithoutGil unlocked(bytes > platform::kLongCopyBytes);
  platform::copy_bytes(out, in, bytes);
}

// The same to memory of the heap that was never written.
inline void copy_to_fresh(void* out, const void* in, std::size_t bytes) {
  if (bytes >= platform::kHugeBytes) platform::advise_huge(static_cast<std::byte*>(out), bytes);
  copy_large(out, in, bytes);
}

}  // namespace shmtree::python
