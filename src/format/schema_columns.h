// Made of schema/shmtree.capnp by cmake/SchemaColumns.cmake: fields of structs at bits, columns at pointers.
#pragma once

#include "format/segment.h"

// NOLINTBEGIN(readability-identifier-naming): the schema's names
namespace shmtree::format::schema {

struct Frame {
  enum : unsigned {
    kWords = 0,
    kPointers = 9,
  };
};
struct Array {
  enum : unsigned {
    kWords = 1,
    kPointers = 0,
    dtype = 0,
    flags = 8,
    ndim = 16,
    spare = 24,
    buffer = 32,
    readOnly = 1,
    fortran = 2,
    strided = 4,
    offset = 8,
    external = 16,
    noBuffer = 32,
  };
};
struct External {
  enum : unsigned {
    kWords = 3,
    kPointers = 0,
    reference = 0,
    offset = 64,
    bytes = 128,
  };
};

inline constexpr Segment::Column kinds{0, Segment::kBytes, 0};
inline constexpr Segment::Column lengths{1, Segment::kBytes, 0};
inline constexpr Segment::Column ints{2, Segment::kWords, 1};
inline constexpr Segment::Column floats{3, Segment::kWords, 1};
inline constexpr Segment::Column text{4, Segment::kBytes, 0};
inline constexpr Segment::Column arrays{5, Segment::kStructs, Array::kWords};
inline constexpr Segment::Column buffers{6, Segment::kWords, 1};
inline constexpr Segment::Column views{7, Segment::kWords, 1};
inline constexpr Segment::Column externals{8, Segment::kStructs, External::kWords};

}  // namespace shmtree::format::schema
// NOLINTEND(readability-identifier-naming)
