// Decides which ranges of the sender's memory share a buffer of the frame, assigns offsets to the buffers, and copies
// them.
// Thread safety: none. copy() reads only the added ranges.
#pragma once

#include "format/array_source.h"

namespace shmtree::format {

class BufferLayout {
 public:
  // Groups the ranges into buffers, and records the result in the ranges.
  void place(SourceTable& sources) noexcept;
  // Assigns offsets to the buffers, after the frame's first `end` bytes. Returns the end of the last buffer, or
  // UINT64_MAX if the frame would exceed kMaxFrameBytes.
  std::uint64_t assign_offsets(std::uint64_t end) noexcept {
    for (Buffer& buffer : buffers_) {
      buffer.offset = align_buffer(end);
      if (buffer.bytes > kMaxFrameBytes || buffer.offset + buffer.bytes > kMaxFrameBytes) return UINT64_MAX;
      end = buffer.offset + buffer.bytes;
      bytes_ += buffer.bytes;
    }
    return end;
  }
  // Writes the buffers into the frame at `out`, and zeroes every gap after its first `end` bytes.
  void copy(const SourceTable& sources, std::byte* out, std::uint64_t end) const noexcept;

  std::size_t size() const noexcept { return buffers_.size(); }
  std::uint64_t bytes_of(std::size_t buffer) const noexcept { return buffers_[buffer].bytes; }
  std::uint64_t bytes() const noexcept { return bytes_; }  // sum over all buffers, without gaps
  int failed() const noexcept { return int{buffers_.failed()} | int{order_.failed()}; }
  void clear() noexcept {
    buffers_.clear();
    bytes_ = 0;
  }

 private:
  struct Buffer {
    const std::byte* begin;
    std::uint64_t bytes;
    std::uint64_t offset;    // from the start of the frame
    std::uint32_t gathered;  // number of the range to copy element by element; kNoIndex for a plain copy
    std::uint32_t padding;   // zero bytes before the data
  };
  void add_buffer(SourceRange& range, std::size_t number) noexcept;
  void place_apart(SourceTable& sources) noexcept;
  void place_shared(SourceTable& sources) noexcept;
  void place_cluster(SourceTable& sources, std::size_t begin, std::size_t end) noexcept;
  void merge(SourceTable& sources, std::size_t begin, std::size_t end) noexcept;
  template <class Use>
  void for_each_cluster(const SourceTable& sources, std::size_t at, std::size_t end, Use use) noexcept;

  Column<Buffer> buffers_;
  Column<std::uint32_t> order_;  // range numbers, sorted by address
  std::uint64_t bytes_ = 0;
};

}  // namespace shmtree::format
