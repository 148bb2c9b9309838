// Which ranges of the sender's memory share a buffer of the frame, where each buffer goes, and the copies.
// Thread safety: none; copy() reads only what was added.
#pragma once

#include "format/array_source.h"

namespace shmtree::format {

class BufferLayout {
 public:
  // Decides which ranges make which buffer, and notes it in them.
  void place(SourceTable& sources) noexcept;
  // Where the buffers go after the frame's first `end` bytes: the end of the last; above kMaxFrameBytes when there is
  // no room.
  std::uint64_t assign_offsets(std::uint64_t end) noexcept {
    for (Buffer& buffer : buffers_) {
      buffer.offset = align_buffer(end);
      if (buffer.bytes > kMaxFrameBytes || buffer.offset + buffer.bytes > kMaxFrameBytes) return UINT64_MAX;
      end = buffer.offset + buffer.bytes;
      bytes_ += buffer.bytes;
    }
    return end;
  }
  // Writes the buffers of the frame at `out`, and zeroes the gaps from its first `end` bytes on.
  void copy(const SourceTable& sources, std::byte* out, std::uint64_t end) const noexcept;

  std::size_t size() const noexcept { return buffers_.size(); }
  std::uint64_t bytes_of(std::size_t buffer) const noexcept { return buffers_[buffer].bytes; }
  std::uint64_t bytes() const noexcept { return bytes_; }  // of all, without the gaps
  int failed() const noexcept { return int{buffers_.failed()} | int{order_.failed()}; }
  void clear() noexcept {
    buffers_.clear();
    bytes_ = 0;
  }

 private:
  struct Buffer {
    const std::byte* begin;
    std::uint64_t bytes;
    std::uint64_t offset;    // in the frame
    std::uint32_t gathered;  // the range whose elements are picked one by one; kNoIndex for a plain copy
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
  Column<std::uint32_t> order_;  // of the ranges, by address
  std::uint64_t bytes_ = 0;
};

}  // namespace shmtree::format
