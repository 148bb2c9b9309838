// Encodes the metadata of a frame as a Cap'n Proto message, with the columns in one order (metadata_layout.h).
// Thread safety: all functions are thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "format/frame_columns.h"

namespace shmtree::format {

// Size of the message in words of 8 bytes, and the number of elements in its longest column.
struct MetadataSize {
  std::uint64_t words = 0;
  std::uint64_t longest = 0;
};
MetadataSize measure_metadata(const FrameColumns& columns) noexcept;

// Writes the message to `out`, which has as many words as measure_metadata() returns for these columns. `kinds` must
// not be empty. Does not read `out`, so `out` may be memory that other processes can access.
void write_metadata(std::span<std::uint64_t> out, const FrameColumns& columns) noexcept;

}  // namespace shmtree::format
