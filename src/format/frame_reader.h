// Reads a frame that may have been written by anybody, and may be changed by them meanwhile.
//
// open() copies the metadata into private memory, then checks all of it that can be checked at once: header, Cap'n
// Proto message, sizes of the columns, places of the buffers. The cursor calls check the rest, node by node, as
// NodeCursor says.
// Buffers are *not* copied: pointers given out lead into the frame, whose bytes others may still change. Text that is
// parsed (long strings, pickles) must be copied first.
// Thread safety: none. Nested readers in one thread are fine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "format/node_cursor.h"

namespace shmtree::format {

// Everything about an array, checked: shape times item neither overflows nor exceeds the buffer, every element lies in
// the buffer. Elements may be unaligned (a view in the middle of a buffer); `data` says.
struct ArrayInfo {
  DType dtype = DType::kOther;
  std::uint8_t flags = 0;  // ArrayFlag
  std::uint8_t ndim = 0;
  std::uint64_t item_bytes = 0;  // of one element; with kOther as the frame claims: compare with the parsed dtype
  std::uint64_t elements = 0;
  std::uint64_t nbytes = 0;         // elements times item_bytes
  const std::byte* data = nullptr;  // the first element; nullptr when external or without bytes
  std::uint32_t buffer = kNoIndex;  // number of the buffer, or of the external range: equal numbers share memory
  std::uint64_t buffer_bytes = 0;
  std::int64_t offset = 0;         // of the first element in the buffer or external range
  Name description{};              // with kOther
  std::int64_t shape[kMaxDims];    // the first `ndim` are set
  std::int64_t strides[kMaxDims];  // bytes, always set

  ArrayInfo() {}  // NOLINT: shape and strides stay uninitialised on purpose
  bool external() const noexcept { return (flags & kExternal) != 0; }
  bool read_only() const noexcept { return (flags & kReadOnly) != 0; }
  // Elements follow one another without gaps, in C or Fortran order.
  bool contiguous() const noexcept { return (flags & kStrided) == 0; }
};

class FrameReader : public NodeCursor {
 public:
  FrameReader() noexcept {}  // NOLINT: everything else is set by load()
  // Before any other call, and once. `frame` may be longer than the frame in it, never shorter. It must stay mapped
  // while `data` pointers are used. kCorrupt with the reason; kIncompatible for a frame of another version.
  Status load(std::span<const std::byte> frame);
  // A reader that has loaded it, for who does not have a place for one: it is large to move.
  static Result<FrameReader> open(std::span<const std::byte> frame);
  FrameReader(FrameReader&&) noexcept;
  FrameReader& operator=(FrameReader&&) noexcept;
  ~FrameReader();

  // Bytes of the frame, from its checked header.
  std::uint64_t total_bytes() const noexcept { return total_bytes_; }
  std::size_t metadata_bytes() const noexcept { return metadata_bytes_; }
  // Its buffers, from the first to the end of the last; and where they are from now on, when they were copied.
  std::span<const std::byte> buffers() const noexcept { return {first_buffer_, buffer_bytes_}; }
  void move_buffers(const std::byte* copy) noexcept { first_buffer_ = copy; }

  // False after a failure; `out` is then undefined.
  bool next_array(ArrayInfo& out) noexcept;
  // The bytes of a kLongStr, kLongBytes...: in the frame itself, so copy before parsing.
  std::span<const std::byte> next_blob() noexcept;
  // Number of segments of a kCapnp: 1 to kMaxSegments, and no more than there are descriptors; 0 after a failure.
  std::uint64_t next_segment_count() noexcept;
  // One of them: a plain run of whole words, which begins at a multiple of 8 of its buffer or block. False after a
  // failure. `data` is aligned if the frame is.
  bool next_segment(ArrayInfo& out) noexcept;
  // Bytes of each buffer, by number.
  std::span<const std::uint64_t> buffer_sizes() const noexcept { return {buffers_.at, buffers_.left()}; }
  std::size_t external_count() const noexcept { return externals_.left(); }
  // `index` as in ArrayInfo::buffer of an external array. The caller checks it against the block it refers to.
  External external(std::size_t index) const noexcept { return externals_.at[index]; }

 private:
  struct Scratch;
  struct ReturnScratch {
    void operator()(Scratch* scratch) const noexcept;
  };
  friend struct ScratchPool;

  Status load_metadata(std::span<const std::byte> frame);
  Status load_columns();
  Status load_flat(std::span<const std::byte> frame);
  void set_columns(const FrameColumns& read) noexcept;
  Status place_buffers(const std::byte* frame);
  bool read_shape(ArrayInfo& out) noexcept;
  bool read_view(ArrayInfo& out) noexcept;
  bool locate(ArrayInfo& out, std::uint32_t buffer) noexcept;

  ColumnCursor<std::uint64_t> buffers_;  // their sizes
  const std::uint64_t* buffer_offsets_;  // from the first one
  ColumnCursor<External> externals_;
  const std::byte* first_buffer_;
  std::uint64_t buffer_bytes_;
  std::uint64_t total_bytes_;
  std::size_t metadata_bytes_;
  std::unique_ptr<Scratch, ReturnScratch> scratch_;
};

}  // namespace shmtree::format
