// Copies leaves that another process may write at the same time. The result is then undefined, and the caller discards
// it after a check.
#pragma once

#include <cstring>

#include "platform/copy.h"
#include "replay/rows/row_store.h"

namespace shmtree::replay {

// Copies leaves of a record inline.
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
  constexpr std::uint64_t kPiece = 16;
  if (bytes > kPiece && bytes <= kMaxInRecord) {
    const std::uint64_t last = bytes - kPiece;
    const auto* const from = static_cast<const std::byte*>(in);
    for (std::uint64_t at = 0; at < last; at += kPiece) std::memcpy(out + at, from + at, kPiece);
    std::memcpy(out + last, from + last, kPiece);
    return;
  }
#endif
  platform::copy_racing(out, in, bytes);
}

}  // namespace shmtree::replay
