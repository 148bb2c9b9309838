// Reads a frame from an untrusted writer, which may change it during the read.
//
// load() copies the metadata into private memory, then checks everything that it can check at once: header, Cap'n Proto
// message, sizes of the columns, and offsets of the buffers. The cursor calls check the rest, node by node; see
// NodeCursor.
// Buffers are *not* copied: `data` points into the frame, and other processes may still change its bytes. Copy long
// strings and pickles before parsing them.
// Thread safety: none. One thread may nest readers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "format/node_cursor.h"

namespace shmtree::format {

// A checked description of an array: shape times item size neither overflows nor exceeds the buffer, and every element
// is inside the buffer. Elements may be unaligned, for example in a view into the middle of a buffer; see `data`.
struct ArrayInfo {
  DType dtype = DType::kOther;
  std::uint8_t flags = 0;  // ArrayFlag
  std::uint8_t ndim = 0;
  std::uint64_t item_bytes = 0;  // size of one element; with kOther a claim of the sender, to compare with the dtype
  std::uint64_t elements = 0;
  std::uint64_t nbytes = 0;         // elements times item_bytes
  const std::byte* data = nullptr;  // first element; nullptr if external or without bytes
  std::uint32_t buffer = kNoIndex;  // number of the buffer or external range; arrays with equal numbers share memory
  std::uint64_t buffer_bytes = 0;
  std::int64_t offset = 0;         // first element, from the start of the buffer or external range
  Name description{};              // set with kOther
  std::int64_t shape[kMaxDims];    // the first `ndim` are set
  std::int64_t strides[kMaxDims];  // in bytes; always set

  ArrayInfo() {}  // NOLINT: shape and strides stay uninitialised on purpose
  bool external() const noexcept { return (flags & kExternal) != 0; }
  bool read_only() const noexcept { return (flags & kReadOnly) != 0; }
  // True if the elements have no gaps between them, in C or Fortran order.
  bool contiguous() const noexcept { return (flags & kStrided) == 0; }
};

// Bytes of other blocks, indexed by the `reference` of the frame's external ranges.
using Blocks = std::span<const std::span<const std::byte>>;

class FrameReader : public NodeCursor {
 public:
  FrameReader() noexcept {}  // NOLINT: everything else is set by load()
  // Loads a frame. Call it once, before any other function. `frame` may be longer than the frame at its start, but not
  // shorter. It must stay mapped while `data` pointers are in use. Fails with kCorrupt (with the reason), kIncompatible
  // (another frame version) or kOutOfSharedMemory.
  Status load(std::span<const std::byte> frame);
  // Returns a reader that has loaded the frame. Prefer load() on an existing reader, since readers are large to move.
  static Result<FrameReader> open(std::span<const std::byte> frame);
  FrameReader(FrameReader&&) noexcept;
  FrameReader& operator=(FrameReader&&) noexcept;
  ~FrameReader();

  // Size of the frame, from its checked header.
  std::uint64_t total_bytes() const noexcept { return total_bytes_; }
  std::size_t metadata_bytes() const noexcept { return metadata_bytes_; }
  // buffers() returns the bytes from the first buffer to the end of the last. move_buffers() redirects later reads to a
  // copy.
  std::span<const std::byte> buffers() const noexcept { return {first_buffer_, buffer_bytes_}; }
  void move_buffers(const std::byte* copy) noexcept { first_buffer_ = copy; }

  // Returns false after a failure; `out` is then undefined.
  bool next_array(ArrayInfo& out) noexcept;
  // Returns the bytes of a kLongStr, kLongBytes and so on. They are in the frame itself: copy them before parsing.
  std::span<const std::byte> next_blob() noexcept;
  // Does the same for callers that need the description of the array.
  bool next_blob(ArrayInfo& out) noexcept;
  // Returns the number of segments of a kCapnp: 1 to kMaxSegments, at most the number of remaining descriptors. 0 after
  // a failure.
  std::uint64_t next_segment_count() noexcept;
  // Reads one segment: contiguous whole words, at an offset in its buffer or block that is a multiple of 8. Returns
  // false after a failure. `data` is aligned if the frame is.
  bool next_segment(ArrayInfo& out) noexcept;
  // Size of each buffer in bytes, by number.
  std::span<const std::uint64_t> buffer_sizes() const noexcept { return {buffers_.at, buffers_.left()}; }
  std::size_t external_count() const noexcept { return externals_.left(); }
  // `index` is ArrayInfo::buffer of an external array. The caller checks the range against the size of its block.
  External external(std::size_t index) const noexcept { return externals_.at[index]; }
  // Sets `data` of an external array. Returns false after a failure: its range is not inside one of these blocks.
  bool locate_in(Blocks blocks, ArrayInfo& array) noexcept;

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
  const std::uint64_t* buffer_offsets_;  // relative to the first buffer
  ColumnCursor<External> externals_;
  const std::byte* first_buffer_;
  std::uint64_t buffer_bytes_;
  std::uint64_t total_bytes_;
  std::size_t metadata_bytes_;
  std::unique_ptr<Scratch, ReturnScratch> scratch_;
};

}  // namespace shmtree::format
