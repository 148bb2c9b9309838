// How the elements of an array lie, whoever has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "format/frame_builder.h"
#include "shmtree/result.h"
#include "shmtree/value.h"

namespace shmtree::value {

// What an array needs besides what its owner says: how its elements lie, and between which addresses.
struct Layout {
  format::Order order = format::Order::kC;
  std::int64_t low = 0;   // bytes from the first element to the lowest address
  std::int64_t high = 0;  // and to the end of the highest element
  bool empty = false;
};

// kInvalid for an array that cannot be; the message says which rule.
Result<Layout> layout_of(const ArrayRef& array);
// Of one that was checked, with elements of `item` bytes and one stride per dimension.
Layout checked_layout(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides, std::int64_t item);

}  // namespace shmtree::value
