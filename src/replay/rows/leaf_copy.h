// Copies leaves that another process may write at the same time. The result is then undefined, and the caller discards
// it after a check.
#pragma once

#include <cstring>

#include "platform/copy.h"
#include "replay/rows/row_store.h"

namespace shmtree::replay {

// Copies small leaves inline.
inline void copy_leaf(std::byte* out, const void* in, std::uint64_t bytes) noexcept {
#if !defined(__SANITIZE_THREAD__)
  switch (bytes) {
    case 1: std::memcpy(out, in, 1); return;
    case 2: std::memcpy(out, in, 2); return;
    case 4: std::memcpy(out, in, 4); return;
    case 8: std::memcpy(out, in, 8); return;
    case 16: std::memcpy(out, in, 16); return;
    case 32: std::memcpy(out, in, 32); return;
    default: break;
  }
#endif
  platform::copy_racing(out, in, bytes);
}

}  // namespace shmtree::replay
