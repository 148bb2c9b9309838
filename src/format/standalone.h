// A frame with arrays in other blocks, as one that stands alone: their bytes become buffers of its own.
//
//   Standalone alone(checked, blocks);                // may throw std::bad_alloc
//   Status fits = alone.finish();                     // total_bytes() is known now
//   alone.write(out);                                 // copies; needs no interpreter's lock
//
// What holds: only descriptors, buffers and views change, in place of the external ranges; nodes do not. Ranges that
// overlap become one buffer, so arrays that shared memory do so again, and no byte of a block is copied twice. A buffer
// begins at the multiple of 64 at or before its first byte, in zeros, so every element is aligned as it was.
// Thread safety: none; write() reads only what was given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/checked_frame.h"

namespace shmtree::format {

class Standalone {
 public:
  // `frame` was loaded with these `blocks`. Both must be there until write().
  Standalone(const CheckedFrame& frame, Blocks blocks);
  // kMessageTooLarge: more than a frame can hold. Once, before the following.
  Status finish();
  std::uint64_t total_bytes() const noexcept { return total_bytes_; }
  // `out` is aligned to 8 bytes, and no other process has access to it.
  void write(std::byte* out) const noexcept;

 private:
  // A run of ranges that overlap.
  struct Run {
    const std::byte* begin;
    std::uint64_t padding;  // zeros before it
    std::uint64_t bytes;    // from begin
    std::uint64_t size() const noexcept { return padding + bytes; }
  };
  // Where an external range is now.
  struct Place {
    std::uint32_t run = 0;
    std::uint64_t offset = 0;
  };
  std::vector<std::uint32_t> used_ranges() const;
  void place_ranges(Blocks blocks);
  void describe_arrays();
  FrameColumns columns() const noexcept;

  const CheckedFrame& frame_;
  const std::span<const std::uint64_t> own_;  // sizes of the buffers that it had
  std::vector<Run> runs_{};
  std::vector<Place> places_{};  // by external range
  std::vector<ArrayDescriptor> arrays_{};
  std::vector<std::uint64_t> buffers_{};
  std::vector<std::int64_t> views_{};
  std::size_t metadata_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace shmtree::format
