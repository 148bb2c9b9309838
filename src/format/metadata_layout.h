// Cap'n Proto's words for the one order in which write_metadata() stores the columns:
//
//   word 0   pointer to the Frame, which follows
//        1   pointers of the Frame: kinds, lengths, text, ints, floats, arrays
//        7   these columns, in this order
//   Then, unless the pointer `arrays` is null:
//            pointers of the Arrays: arrays, buffers, views, externals
//            these columns, in this order; a tag precedes each column of structs
//
// A column takes whole words, and the pointer of an empty column is null. Therefore the sizes of the columns determine
// all words outside of the columns. The test "metadata is byte-identical to that of the capnp builder" compares these
// words with the output of Cap'n Proto.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/frame_columns.h"

namespace shmtree::format {

// Number of pointers of the Frame and of the Arrays. These structs consist of pointers only. metadata_writer.cpp
// compares these numbers with the schema.
inline constexpr std::size_t kFramePointers = 6, kArraysPointers = 4;

// Call use(column...) with the columns of a struct, in order.
template <class Columns, class Use>
constexpr auto with_frame(Columns& columns, Use use) noexcept {
  return use(columns.kinds, columns.lengths, columns.text, columns.ints, columns.floats);
}
template <class Columns, class Use>
constexpr auto with_arrays(Columns& columns, Use use) noexcept {
  return use(columns.arrays, columns.buffers, columns.views, columns.externals);
}

// Number of words of one element, or 0 for columns of bytes and of words.
template <class T>
inline constexpr std::size_t kStructWords = 0;
template <>
inline constexpr std::size_t kStructWords<ArrayDescriptor> = 1;
template <>
inline constexpr std::size_t kStructWords<External> = 3;
// Readers use the structs in place.
static_assert(sizeof(ArrayDescriptor) == 8 && offsetof(ArrayDescriptor, flags) == 1 &&
              offsetof(ArrayDescriptor, ndim) == 2 && offsetof(ArrayDescriptor, buffer) == 4);
static_assert(sizeof(External) == 24 && offsetof(External, offset) == 8 && offsetof(External, bytes) == 16);

// Pointer to a struct that begins `offset` words after the pointer.
constexpr std::uint64_t struct_pointer(std::uint64_t offset, std::size_t data_words, std::size_t pointers) noexcept {
  return offset << 2 | std::uint64_t{data_words} << 32 | std::uint64_t{pointers} << 48;
}

// Pointer to a list of `count` values of the type T, `offset` words after the pointer.
template <class T>
constexpr std::uint64_t list_pointer(std::uint64_t offset, std::uint64_t count) noexcept {
  constexpr std::uint64_t kList = 1, kOneByte = 2, kEightBytes = 5, kStructs = 7;
  static_assert(sizeof(T) == 1 || sizeof(T) == 8 || kStructWords<T> != 0);
  const std::uint64_t element = kStructWords<T> != 0 ? kStructs : sizeof(T) == 1 ? kOneByte : kEightBytes;
  const std::uint64_t counted = kStructWords<T> != 0 ? count * kStructWords<T> : count;
  return kList | offset << 2 | element << 32 | counted << 35;
}

// Word before the first of `count` structs.
template <class T>
constexpr std::uint64_t tag_of(std::uint64_t count) noexcept {
  return struct_pointer(count, kStructWords<T>, 0);
}

}  // namespace shmtree::format
