#include "replay/rows/shape.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>

#include "platform/dcheck.h"
#include "platform/errors.h"

namespace shmtree::replay {

using memory::round_up;

namespace {

constexpr std::uint64_t kLine = 64;
constexpr std::uint64_t kMaxCapacity = std::uint64_t{1} << 40;
constexpr std::uint64_t kMaxRowBytes = std::uint64_t{1} << 40;
constexpr std::uint64_t kExtentBytes = std::uint64_t{64} << 20;  // approximate; an extent has at least one chunk

std::uint64_t chosen_rows_per_chunk(const ShapeOptions& options) {
  const std::uint64_t most = options.capacity / (16 * std::max<std::uint64_t>(options.streams, 1));
  return std::clamp<std::uint64_t>(std::bit_floor(most), 1, kMaxRowsPerChunk);
}

// Puts large leaves into columns and the others into the record, those with the strictest alignment first.
void place_leaves(Shape& shape, std::span<const std::uint64_t> leaf_bytes) {
  for (const std::uint64_t bytes : leaf_bytes) shape.leaves.push_back({.bytes = bytes});
  for (const std::uint64_t alignment : {8u, 4u, 2u, 1u}) {
    for (Leaf& leaf : shape.leaves) {
      const std::uint64_t least = std::min<std::uint64_t>(std::uint64_t{1} << std::countr_zero(leaf.bytes | 8), 8);
      if (leaf.bytes > kMaxInRecord || least != alignment) continue;
      leaf.begin = shape.record_bytes;
      shape.record_bytes += leaf.bytes;
    }
  }
  shape.record_bytes = round_up(shape.record_bytes, 8);
  if (shape.record_bytes > kLine / 2) shape.record_bytes = round_up(shape.record_bytes, kLine);
  for (Leaf& leaf : shape.leaves) {
    leaf.has_column = leaf.bytes > kMaxInRecord;
    leaf.stride = leaf.has_column ? leaf.bytes : shape.record_bytes;
    if (leaf.has_column) shape.column_bytes.push_back(leaf.bytes);
  }
}

// Lays out an extent: the records first, then the columns.
void place_columns(Shape& shape) {
  const std::uint64_t entries = shape.chunks_per_extent * shape.rows_per_chunk;
  std::uint64_t at = round_up(entries * shape.record_bytes, kLine);
  for (Leaf& leaf : shape.leaves) {
    if (!leaf.has_column) continue;
    leaf.begin = at;
    at = round_up(at + entries * leaf.bytes, kLine);
  }
  shape.extent_bytes = at;
}

}  // namespace

std::vector<Leaf> Shape::regions() const {
  std::vector<Leaf> found;
  if (record_bytes != 0) found.push_back({.bytes = record_bytes, .stride = record_bytes});
  std::copy_if(leaves.begin(), leaves.end(), std::back_inserter(found),
               [](const Leaf& leaf) { return leaf.has_column; });
  return found;
}

Result<Shape> shape_of(std::span<const std::uint64_t> leaf_bytes, const ShapeOptions& options) {
  if (options.capacity == 0 || options.capacity > kMaxCapacity) {
    return invalid("capacity is " + std::to_string(options.capacity) + " rows; it must be from 1 to " +
                   std::to_string(kMaxCapacity));
  }
  if (options.streams > kMaxCapacity) {
    return invalid("streams is " + std::to_string(options.streams) + "; it must be at most " +
                   std::to_string(kMaxCapacity));
  }
  const std::uint64_t rows = options.rows_per_chunk == 0 ? chosen_rows_per_chunk(options) : options.rows_per_chunk;
  if (!std::has_single_bit(rows) || rows > kMaxRowsPerChunk || rows > options.capacity) {
    return invalid("chunk is " + std::to_string(rows) + " rows; it must be a power of two, at most " +
                   std::to_string(kMaxRowsPerChunk) + " and at most the capacity, " + std::to_string(options.capacity));
  }
  if (options.ahead > kMaxAhead || options.ahead >= options.capacity) {
    return invalid("rows that need " + std::to_string(options.ahead) + " successors; they must need at most " +
                   std::to_string(kMaxAhead) + ", and fewer than the capacity, " + std::to_string(options.capacity));
  }
  if (options.finals && options.ahead == 0)
    return invalid("last observations are stored only for rows that need successors");
  std::uint64_t row_bytes = 0;
  for (const std::uint64_t bytes : leaf_bytes) {
    if (bytes == 0 || bytes > kMaxRowBytes)
      return invalid("a leaf has " + std::to_string(bytes) + " bytes; it must have 1 to " +
                     std::to_string(kMaxRowBytes));
    row_bytes += bytes;
  }
  Shape shape{.capacity = options.capacity, .rows_per_chunk = rows, .ahead = options.ahead, .finals = options.finals};
  place_leaves(shape, leaf_bytes);
  if (shape.leaves.empty()) return invalid("rows need at least one leaf");
  if (shape.column_bytes.size() > kMaxColumns) {
    return invalid(std::to_string(shape.column_bytes.size()) + " leaves of over " + std::to_string(kMaxInRecord) +
                   " bytes; there must be at most " + std::to_string(kMaxColumns));
  }
  shape.chunks = (shape.capacity + rows - 1) / rows + std::max<std::uint64_t>(options.streams, 1) + 1;
  const std::uint64_t chunk_bytes = rows * (shape.record_bytes + row_bytes);
  const std::uint64_t fewest = (shape.chunks + kMaxExtents - 1) / kMaxExtents;
  shape.chunks_per_extent = std::clamp<std::uint64_t>(kExtentBytes / chunk_bytes, std::max<std::uint64_t>(fewest, 1),
                                                      std::max(shape.chunks, fewest));
  shape.max_extents = (shape.chunks + shape.chunks_per_extent - 1) / shape.chunks_per_extent;
  if (shape.chunks > memory::kMaxBudget / chunk_bytes) {
    return invalid(std::to_string(shape.capacity) + " rows of " + std::to_string(row_bytes) +
                   " bytes exceed the largest arena, " + std::to_string(memory::kMaxBudget) + " bytes");
  }
  place_columns(shape);
  SHMTREE_DCHECK(shape.max_extents <= kMaxExtents && shape.slots() >= shape.capacity);
  shape.row_bits = static_cast<unsigned>(std::countr_zero(rows));
  shape.by_chunks = Divisor(shape.chunks);
  shape.by_chunks_per_extent = Divisor(shape.chunks_per_extent);
  return shape;
}

Result<Shape> shape_of(const ReplayHeader& header, std::span<const std::uint64_t> leaf_bytes) {
  const auto incompatible = [] {
    return Error{.code = Code::kIncompatible,
                 .message = "this block of the arena is not a replay buffer of this version with these rows"};
  };
  if (header.magic != kReplayMagic) return incompatible();
  if (header.version != kReplayVersion) return other_version(header.version);
  const std::uint64_t rows = header.rows_per_chunk, capacity = header.capacity, chunks = header.chunks;
  if (rows == 0 || capacity == 0 || capacity > kMaxCapacity || chunks <= capacity / rows) return incompatible();
  const std::uint64_t streams = chunks - (capacity + rows - 1) / rows - 1;
  if (header.finals > 1) return incompatible();
  auto shape = shape_of(leaf_bytes, {.capacity = capacity,
                                     .rows_per_chunk = rows,
                                     .streams = streams,
                                     .ahead = header.ahead,
                                     .finals = header.finals == 1});
  if (!shape.ok()) return incompatible();
  const bool same = shape->chunks == chunks && shape->record_bytes == header.record_bytes &&
                    shape->column_bytes.size() == header.columns &&
                    shape->chunks_per_extent == header.chunks_per_extent && shape->max_extents == header.max_extents &&
                    std::equal(shape->column_bytes.begin(), shape->column_bytes.end(), header.column_bytes);
  if (!same) return incompatible();
  return shape;
}

}  // namespace shmtree::replay
