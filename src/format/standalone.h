// Turns a frame with arrays in other blocks into a frame that stands alone: the bytes of the arrays become buffers of
// the new frame.
//
//   Standalone alone(checked, blocks);                // may throw std::bad_alloc
//   Status fits = alone.finish();                     // total_bytes() is known now
//   alone.write(out);                                 // copies; needs no interpreter's lock
//
// Invariants: only descriptors, buffers and views change; nodes do not. Overlapping ranges become one buffer. So arrays
// that shared memory still share it, and no byte of a block is copied twice. Zeros before the first byte fill a buffer
// from the preceding multiple of 64, so every element keeps its alignment. Thread safety: none. write() reads only the
// given frame and blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/checked_frame.h"

namespace shmtree::format {

class Standalone {
 public:
  // `frame` was loaded with these `blocks`. Both must stay valid until write() returns.
  Standalone(const CheckedFrame& frame, Blocks blocks);
  // Computes the size. Call once, before the functions below. Fails with kMessageTooLarge if a frame cannot hold the
  // result.
  Status finish();
  std::uint64_t total_bytes() const noexcept { return total_bytes_; }
  // `out` is aligned to 8 bytes, and no other process has access to it.
  void write(std::byte* out) const noexcept;

 private:
  // A run of overlapping ranges.
  struct Run {
    const std::byte* begin;
    std::uint64_t padding;  // zeros before it
    std::uint64_t bytes;    // from begin
    std::uint64_t size() const noexcept { return padding + bytes; }
  };
  // New location of an external range.
  struct Position {
    std::uint32_t run = 0;
    std::uint64_t offset = 0;
  };
  std::vector<std::uint32_t> used_ranges() const;
  void place_ranges(Blocks blocks);
  void describe_arrays();
  FrameColumns columns() const noexcept;

  const CheckedFrame& frame_;
  const std::span<const std::uint64_t> own_;  // sizes of the frame's own buffers
  std::vector<Run> runs_{};
  std::vector<Position> positions_{};  // indexed by external range
  std::vector<ArrayDescriptor> arrays_{};
  std::vector<std::uint64_t> buffers_{};
  std::vector<std::int64_t> views_{};
  std::size_t metadata_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace shmtree::format
