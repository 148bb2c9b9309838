// What a buffer's rows are made of, and where each of them lies. Computed once from numbers that were checked, so that
// no word of shared memory decides about an address.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "replay/layout.h"
#include "shmtree/result.h"

namespace shmtree::replay {

// Leaves up to this size share a record, which a draw reads at once; a larger one has a column.
constexpr std::uint64_t kMostInRecord = 256;

struct Leaf {
  std::uint64_t bytes = 0;
  bool has_column = false;
  std::uint64_t at = 0;  // offset in the record, or number of the column
};

struct Shape {
  std::uint64_t capacity = 0, rows_per_place = 0, places = 0, places_per_extent = 0, most_extents = 0;
  std::uint64_t record_bytes = 0;
  std::vector<std::uint64_t> column_bytes{};
  std::vector<Leaf> leaves{};

  std::uint64_t extent_of(std::uint64_t place) const noexcept { return place / places_per_extent; }
  // Offsets in an extent.
  std::uint64_t record_offset(std::uint64_t place, std::uint64_t row) const noexcept {
    return entry_of(place, row) * record_bytes;
  }
  std::uint64_t column_offset(std::uint64_t column, std::uint64_t place, std::uint64_t row) const noexcept {
    return column_begins[column] + entry_of(place, row) * column_bytes[column];
  }
  std::uint64_t extent_bytes() const noexcept { return column_begins.back(); }

  std::vector<std::uint64_t> column_begins{};  // in an extent; the last is its end

 private:
  std::uint64_t entry_of(std::uint64_t place, std::uint64_t row) const noexcept {
    return (place % places_per_extent) * rows_per_place + row;
  }
};

struct ShapeOptions {
  std::uint64_t capacity = 0;        // rows
  std::uint64_t rows_per_place = 0;  // a power of two up to 64; 0: what suits the capacity
  std::uint64_t streams = 1;         // how many places are open at a time, about
};

// Code::kInvalid, with the numbers, for what no buffer can be.
Result<Shape> shape_of(std::span<const std::uint64_t> leaf_bytes, const ShapeOptions& options);
// Of a header that anybody may have written; Code::kIncompatible. `leaf_bytes` are those that it was made with.
Result<Shape> shape_of(const ReplayHeader& header, std::span<const std::uint64_t> leaf_bytes);

}  // namespace shmtree::replay
