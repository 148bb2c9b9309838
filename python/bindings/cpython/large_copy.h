// Copies that release the GIL if they are long enough.
#pragma once

#include <cstddef>

#include "bindings/cpython/gil.h"
#include "bindings/cpython/python_api.h"
#include "platform/copy.h"
#include "platform/file.h"
#include "platform/huge_pages.h"

namespace shmtree::python {

// Needs the GIL. The caller keeps both memory areas alive: other threads run during the copy.
inline void copy_large(void* out, const void* in, std::size_t bytes) {
  // Releasing the GIL and taking it again costs about as much as copying some KiB.
  const WithoutGil unlocked(bytes > platform::kLongCopyBytes);
  platform::copy_bytes(out, in, bytes);
}

// Copies likewise to heap memory that was never written.
inline void copy_to_fresh(void* out, const void* in, std::size_t bytes) {
  if (bytes >= platform::kHugeBytes) platform::advise_huge(static_cast<std::byte*>(out), bytes);
  copy_large(out, in, bytes);
}

}  // namespace shmtree::python
