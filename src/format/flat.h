// A flat frame contains one run of bytes and no metadata. It is written and read without a builder or a reader. The
// flag kFlat in the header marks it.
//
//   offset 0  16  the header; instead of the size of the metadata, the size of the padding: 0 or 48
//         16      the padding, zeros
//   Then the bytes, to the end of the frame.
//
// A frame without padding takes the fewest bytes. With padding, the bytes begin at a multiple of 64.
// Thread safety: all functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "format/layout.h"

namespace shmtree::format {

// Offset of the bytes in a frame with padding.
inline constexpr std::uint64_t kFlatBuffer = kBufferAlignment;
inline constexpr std::uint64_t kMaxFlatBytes = kMaxFrameBytes - kFlatBuffer;  // longest run
inline constexpr std::uint64_t kFlatPadding = kFlatBuffer - sizeof(FrameHeader);

// Size of a frame for a run of `count` bytes, without padding and with it.
constexpr std::uint64_t flat_short_bytes(std::uint64_t count) noexcept {
  return sizeof(FrameHeader) + count;
}
constexpr std::uint64_t flat_long_bytes(std::uint64_t count) noexcept {
  return kFlatBuffer + count;
}

// Writes a whole frame of flat_short_bytes().
void write_flat_short(std::byte* out, std::span<const std::byte> run) noexcept;
// Writes the header and the padding of a frame of flat_long_bytes(). The caller writes the `count` bytes after them.
void write_flat_prefix(std::byte* out, std::uint64_t count) noexcept;

// Returns the bytes in a flat frame, or nullopt if it is another frame or a damaged one. Reads the header once, because
// other processes may change the frame meanwhile.
std::optional<std::span<const std::byte>> flat_run(std::span<const std::byte> frame) noexcept;

}  // namespace shmtree::format
