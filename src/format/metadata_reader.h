// Reads the metadata of a frame with Cap'n Proto's library.
// Thread safety: all functions are thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format/frame_columns.h"
#include "shmtree/base/result.h"

namespace shmtree::format {

// Copies of the columns that cannot be used in place.
struct MetadataScratch {
  std::vector<ArrayDescriptor> arrays;
  std::vector<External> externals;
};

// Sets `columns` to the contents of the message in `words`. The columns point into `words` and `scratch`, which must
// not change while the columns are used. Fails with kCorrupt if it is not a message of this version of the schema. May
// throw std::bad_alloc.
Status read_metadata(std::span<const std::uint64_t> words, MetadataScratch& scratch, FrameColumns& columns);

}  // namespace shmtree::format
