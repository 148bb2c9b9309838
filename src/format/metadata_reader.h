// Reads the metadata of a frame.
// Thread safety: all functions are thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "format/frame_columns.h"
#include "shmtree/base/result.h"

namespace shmtree::format {

// Sets `columns` to the contents of the message in `words`. The columns point into `words`, which must not change while
// the columns are used. Fails with kCorrupt if it is not a message of this version of the schema. May throw
// std::bad_alloc.
Status read_metadata(std::span<const std::uint64_t> words, FrameColumns& columns);

}  // namespace shmtree::format
