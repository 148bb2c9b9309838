// Copies of any size, the largest past the caches.
#pragma once

#include <cstddef>

namespace shmtree::platform {

// From here on a copy would push everything else out of the caches, itself included.
inline constexpr std::size_t kStreamedBytes = std::size_t{16} << 20;
// A longer copy is worth letting go of an interpreter's lock for.
inline constexpr std::size_t kLongCopyBytes = std::size_t{64} << 10;

// memcpy(), but for large copies with stores that do not read the lines they overwrite. 32 MB between touched pages
// took 2.5 ms instead of 3.7, and 1 GB 75 ms instead of the 90 to 290 that the C library takes, depending on how the
// two places lie within their pages. What was stored is visible to whoever sees a later store.
void copy_bytes(void* out, const void* in, std::size_t bytes) noexcept;

// The same of memory that others may write meanwhile: then anything may be in `out`, and the caller throws it away.
void copy_racing(void* out, const void* in, std::size_t bytes) noexcept;

}  // namespace shmtree::platform
