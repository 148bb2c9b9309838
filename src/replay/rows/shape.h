// Sizes and offsets of a buffer's rows. Each process computes them once from validated numbers, so that no later change
// of a shared word can affect an address.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "platform/dcheck.h"
#include "replay/rows/layout.h"
#include "shmtree/base/result.h"

namespace shmtree::replay {

// Largest leaf, in bytes, that is stored in the row's record, which a sample reads at once. A larger one has a column.
constexpr std::uint64_t kMaxInRecord = 256;

struct Leaf {
  std::uint64_t bytes = 0;
  bool has_column = false;
  std::uint64_t begin = 0;   // offset in an extent of the first slot's value
  std::uint64_t stride = 0;  // bytes from one slot's value to the next one's
};

// Divides numbers below 2^54 by a divisor that is known in advance, with a multiplication instead of a division.
class Divisor {
 public:
  explicit constexpr Divisor(std::uint64_t by = 1) noexcept : by_(by), reciprocal_(~std::uint64_t{0} / by) {}
  constexpr std::uint64_t quotient(std::uint64_t of) const noexcept {
    SHMTREE_DCHECK(of >> 54 == 0);
    __extension__ using Wide = unsigned __int128;
    // The quotient, or one less.
    const auto least = static_cast<std::uint64_t>(static_cast<Wide>(of) * reciprocal_ >> 64);
    return least + (of - least * by_ >= by_ ? 1 : 0);
  }
  constexpr std::uint64_t remainder(std::uint64_t of) const noexcept { return of - quotient(of) * by_; }

 private:
  std::uint64_t by_, reciprocal_;
};

struct Shape {
  std::uint64_t capacity = 0, rows_per_chunk = 0, chunks = 0, chunks_per_extent = 0, max_extents = 0;
  std::uint64_t record_bytes = 0;
  std::uint64_t ahead = 0;
  bool finals = false;
  std::vector<std::uint64_t> column_bytes{};
  std::vector<Leaf> leaves{};

  std::uint64_t extent_bytes = 0;
  unsigned row_bits = 0;  // log2 of rows_per_chunk
  Divisor by_chunks{}, by_chunks_per_extent{};

  // Returns the contiguous regions of an extent in order: the records as one leaf, if there are any, then the columns.
  std::vector<Leaf> regions() const;
  std::uint64_t slots() const noexcept { return chunks * rows_per_chunk; }
  // Requires a ticket up to kMaxTicket.
  std::uint64_t chunk_of(std::uint64_t ticket) const noexcept {
    SHMTREE_DCHECK(ticket <= kMaxTicket);
    return by_chunks.remainder(ticket);
  }
  std::uint64_t extent_of(std::uint64_t chunk) const noexcept { return by_chunks_per_extent.quotient(chunk); }
  std::uint64_t ticket_of(std::uint64_t index) const noexcept { return index >> row_bits; }
  std::uint64_t slot_of(std::uint64_t index) const noexcept { return index & (rows_per_chunk - 1); }
  std::uint64_t index_of(std::uint64_t ticket, std::uint64_t slot) const noexcept {
    SHMTREE_DCHECK(slot < rows_per_chunk);
    return ticket << row_bits | slot;
  }
};

struct ShapeOptions {
  std::uint64_t capacity = 0;        // Rows.
  std::uint64_t rows_per_chunk = 0;  // A power of two up to 64; 0: chosen from the capacity.
  std::uint64_t streams = 1;         // Approximate number of chunks that are open at a time.
  std::uint64_t ahead = 0;           // Successors that a row needs before it may be sampled.
  bool finals = false;               // True: store the last observations of episodes, besides their rows.
};

// Computes the shape of a new buffer. Returns Code::kInvalid, with the numbers, if the options are out of range.
Result<Shape> shape_of(std::span<const std::uint64_t> leaf_bytes, const ShapeOptions& options);
// Validates an untrusted header. `leaf_bytes` are the sizes with which the buffer was created. Returns
// Code::kIncompatible if the header does not fit them.
Result<Shape> shape_of(const ReplayHeader& header, std::span<const std::uint64_t> leaf_bytes);

}  // namespace shmtree::replay
