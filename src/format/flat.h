// A flat frame: a run of bytes without metadata, so it is written and read without a builder or a reader. The flag
// kFlat in the header marks it.
//
//   offset 0  16  the header; instead of the size of the metadata, the size of the padding: 0 or 48
//         16      the padding, zeros
//   Then the bytes, to the end of the frame.
//
// Without padding, a frame takes the least room; with padding, the bytes begin at a multiple of 64.
// Thread safety: functions only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "format/layout.h"

namespace shmtree::format {

// Where the bytes begin in a frame with padding.
inline constexpr std::uint64_t kFlatBuffer = kBufferAlignment;
inline constexpr std::uint64_t kMaxFlatBytes = kMaxFrameBytes - kFlatBuffer;  // of the bytes value
inline constexpr std::uint64_t kFlatPadding = kFlatBuffer - sizeof(FrameHeader);

// Bytes of the frame with a run of `count`: without padding, and with it.
constexpr std::uint64_t flat_short_bytes(std::uint64_t count) noexcept {
  return sizeof(FrameHeader) + count;
}
constexpr std::uint64_t flat_long_bytes(std::uint64_t count) noexcept {
  return kFlatBuffer + count;
}

// Writes a whole frame of flat_short_bytes().
void write_flat_short(std::byte* out, std::span<const std::byte> run) noexcept;
// Writes what comes before the run of `count` bytes in a frame of flat_long_bytes().
void write_flat_prefix(std::byte* out, std::uint64_t count) noexcept;

// The bytes in such a frame; nothing if it is another frame, or a damaged one. The header is read once: others may
// change the frame meanwhile.
std::optional<std::span<const std::byte>> flat_run(std::span<const std::byte> frame) noexcept;

}  // namespace shmtree::format
