// Copies leaves that another process may write at the same time. The result is then undefined, and the caller discards
// it after a check.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "platform/copy.h"
#include "replay/rows/row_store.h"

namespace shmtree::replay {

template <std::uint64_t kBytes>
using Size = std::integral_constant<std::uint64_t, kBytes>;

// Calls act() with the size as a constant if it is a common one. Returns false otherwise.
template <class Act>
bool with_common_size(std::uint64_t bytes, Act act) {
  const auto is = [&](auto size) { return bytes == size && (act(size), true); };
  return is(Size<1>{}) || is(Size<2>{}) || is(Size<4>{}) || is(Size<8>{}) || is(Size<12>{}) || is(Size<16>{}) ||
         is(Size<24>{}) || is(Size<32>{}) || is(Size<64>{});
}

// Copies leaves of a record inline.
inline void copy_leaf(std::byte* out, const void* in, std::uint64_t bytes) noexcept {
#if !defined(__SANITIZE_THREAD__)
  if (with_common_size(bytes, [&](auto size) { std::memcpy(out, in, size); })) return;
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
