// Frames of nothing but a run of bytes, written and recognised without a builder or a reader: the same bytes that a
// FrameBuilder makes of a kBytes, or of a kLongBytes, as the root. Short runs stand in the text of the metadata, where
// a frame takes the least room; others in a buffer, which begins at a multiple of 64.
//
// Thread safety: functions only. What is recognised was copied first: the frame may change meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "format/layout.h"

namespace shmtree::format {

// Where the bytes of a buffer begin.
inline constexpr std::uint64_t kFlatBuffer = 192;
static_assert(kFlatBuffer % kBufferAlignment == 0);

// Bytes of the frame with a run of `count`.
std::uint64_t flat_text_bytes(std::uint64_t count) noexcept;
inline std::uint64_t flat_buffer_bytes(std::uint64_t count) noexcept {
  return kFlatBuffer + count;
}

// Writes a whole frame of flat_text_bytes(), of at most kMaxInlineText.
void write_flat_text(std::byte* out, std::span<const std::byte> run) noexcept;
// Writes what comes before the buffer of a run of `count`, at least one and at most kMaxFrameBytes - kFlatBuffer.
void write_flat_prefix(std::byte* out, std::uint64_t count) noexcept;

// The run in such a frame; nothing when it is another frame, or a damaged one.
std::optional<std::span<const std::byte>> flat_run(std::span<const std::byte> frame) noexcept;

}  // namespace shmtree::format
