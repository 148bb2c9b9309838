// Computes the memory layout of an array. Inline, because it runs for every array that is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "format/frame_builder.h"
#include "platform/dcheck.h"
#include "platform/errors.h"
#include "shmtree/base/result.h"
#include "shmtree/value.h"

namespace shmtree::value {

// The layout of an array: the order of its elements, and the range of addresses that they occupy.
struct Layout {
  format::Order order = format::Order::kC;
  std::int64_t low = 0;   // Offset in bytes of the lowest address from the first element.
  std::int64_t high = 0;  // Offset in bytes of the end of the highest element.
  bool empty = false;
};

using Numbers = std::span<const std::int64_t>;

inline bool follows(Numbers shape, Numbers strides, std::int64_t item, bool fortran) {
  SHMTREE_DCHECK(shape.size() == strides.size());
  std::int64_t stride = item;
  for (std::size_t n = 0; n < shape.size(); ++n) {
    const std::size_t i = fortran ? n : shape.size() - 1 - n;
    if (shape[i] > 1 && strides[i] != stride) return false;
    stride *= shape[i];
  }
  return true;
}

// Fills in `layout`. Returns false if the strides overflow 64 bits. `bytes` is the size of all elements.
inline bool place(Numbers shape, Numbers strides, std::int64_t item, std::int64_t bytes, Layout& layout) {
  if (follows(shape, strides, item, false)) {
    layout.high = bytes;
    return true;
  }
  if (follows(shape, strides, item, true)) {
    layout.order = format::Order::kFortran;
    layout.high = bytes;
    return true;
  }
  layout.order = format::Order::kStrided;
  layout.high = item;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(shape[i] - 1, strides[i], &reach) ||
        __builtin_add_overflow(reach < 0 ? layout.low : layout.high, reach, reach < 0 ? &layout.low : &layout.high)) {
      return false;
    }
  }
  return true;
}

// Returns the layout of an array. kInvalid: the array is impossible; the error has the rule that it breaks.
[[gnu::always_inline]] inline Result<Layout> layout_of(const ArrayRef& array) {
  const std::size_t item = item_bytes(array.dtype);
  if (item == 0) return invalid("An array to send has no element type of C++.");
  if (array.shape.size() > kMaxDims) {
    return invalid("An array to send has " + std::to_string(array.shape.size()) +
                   " dimensions; it must have at most 64.");
  }
  if (!array.strides.empty() && array.strides.size() != array.shape.size()) {
    return invalid("An array to send has " + std::to_string(array.shape.size()) + " dimensions and " +
                   std::to_string(array.strides.size()) + " strides.");
  }
  Layout layout;
  auto bytes = static_cast<std::int64_t>(item);
  for (const std::int64_t count : array.shape) {
    if (count < 0) return invalid("An array to send has a dimension of " + std::to_string(count) + ".");
    layout.empty = layout.empty || count == 0;
    if (count != 0 && __builtin_mul_overflow(bytes, count, &bytes)) {
      return invalid("The shape of an array to send overflows 64 bits.");
    }
  }
  if (layout.empty) return layout;
  if (array.data == nullptr) return invalid("An array to send has elements but no address.");
  if (array.strides.empty()) {
    layout.high = bytes;
    return layout;
  }
  if (!place(array.shape, array.strides, static_cast<std::int64_t>(item), bytes, layout)) {
    return invalid("The strides of an array to send overflow 64 bits.");
  }
  return layout;
}

// Returns the layout of an array with a valid shape and valid strides, which the caller has checked. `item`: bytes per
// element. `strides`: one per dimension.
inline Layout checked_layout(Numbers shape, Numbers strides, std::int64_t item) {
  Layout layout;
  std::int64_t bytes = item;
  for (const std::int64_t count : shape) bytes *= count;
  layout.empty = bytes == 0;
  if (!layout.empty) place(shape, strides, item, bytes, layout);
  return layout;
}

}  // namespace shmtree::value
