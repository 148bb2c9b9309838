// Collects the nodes of one message in columns, then writes them as a frame straight into its place.
//
//   builder.clear();
//   builder.add_kind(Kind::kStrDict);  builder.add_length(1);
//   builder.add_name("reward");
//   builder.add_kind(Kind::kFloat);    builder.add_float(1.0);
//   Status status = builder.finish();              // encodes the metadata; total_bytes() is known from here on
//   builder.write_metadata(out);                   // microseconds at most, whatever the buffers' size
//   builder.copy_buffers(out);                     // reads only the memory that was added: no interpreter lock needed
//
// Its parts: NodeColumns, what nodes are appended to; SourceTable, the memory of their arrays; BufferLayout, where that
// goes in the frame.
// Memory given by pointer is not copied until copy_buffers(): it must stay alive and unchanged until then.
// Thread safety: none. Reuse one builder for many messages: the columns keep their memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/array_source.h"
#include "format/buffer_layout.h"
#include "format/frame_columns.h"
#include "format/node_columns.h"
#include "shmtree/result.h"

namespace shmtree::format {

class FrameBuilder : public NodeColumns {
 public:
  // Forgets the message, keeps the memory. Cheap.
  void clear() noexcept;

  // An array (A). Never fails; a shape that cannot be is a caller's bug.
  void add_array(const ArraySource& source) noexcept;
  // The array descriptor (A) of plain bytes: long strings, pickles.
  void add_blob(const void* bytes, std::size_t count, bool read_only = true) noexcept;
  // Bytes in another block, for ArraySource::external. A range added again soon gets the same number.
  std::uint32_t add_external(const External& range) noexcept;
  // kStr or kLongStr; `text` must outlive copy_buffers() in case it is long.
  void add_str_node(const char* text, std::size_t count) noexcept {
    add_text_node(Kind::kStr, Kind::kLongStr, text, count);
  }
  void add_bytes_node(const void* bytes, std::size_t count) noexcept {
    add_text_node(Kind::kBytes, Kind::kLongBytes, bytes, count);
  }
  void add_text_node(Kind inline_kind, Kind long_kind, const void* bytes, std::size_t count) noexcept {
    if (is_long(count)) [[unlikely]] {
      add_kind(long_kind);
      add_blob(bytes, count);
    } else {
      add_kind(inline_kind);
      add_string(bytes, count);
    }
  }

  // A place in the message. rewind() drops everything added since, for instance when part of a container turns out to
  // need pickle.
  struct Mark {
    NodeColumns::Mark nodes;
    SourceTable::Mark sources;
    std::size_t arrays, externals;
  };
  Mark mark() const noexcept { return {NodeColumns::mark(), sources_.mark(), arrays_.size(), externals_.size()}; }
  void rewind(const Mark& mark) noexcept;

  // Decides where everything goes. kMessageTooLarge: more than a frame can hold; kOutOfSharedMemory: no memory for the
  // columns. Call once, after the last node; only then the following are meaningful.
  Status finish() noexcept;

  std::uint64_t total_bytes() const noexcept { return total_bytes_; }
  std::size_t metadata_bytes() const noexcept { return metadata_bytes_; }
  // Bytes that copy_buffers() will move.
  std::uint64_t buffer_bytes() const noexcept { return buffers_.bytes(); }
  std::size_t buffer_count() const noexcept { return buffers_.size(); }

  // `out` has total_bytes() bytes. Writes header and metadata (metadata_bytes() + 16 bytes).
  void write_metadata(std::byte* out) const noexcept;
  // Writes the rest, padding included. Touches neither the columns nor anything but the memory added and `out`.
  void copy_buffers(std::byte* out) const noexcept;
  // Writes the whole frame: both of the above. Reads only the builder's own memory and the memory added.
  void write(std::byte* out) const noexcept;

 private:
  // One array, as far as it is known before finish().
  struct ArrayRecord {
    std::uint8_t dtype;
    std::uint8_t flags;
    std::uint8_t ndim;
    std::uint32_t source;    // of `sources_`, or of `externals_` with kExternal
    std::int64_t offset;     // of the first element, from the start of the source
    std::uint32_t geometry;  // its shape and strides in `sources_`; kNoIndex when contiguous
  };
  void add_strided(const ArraySource& source, std::uint64_t item, ArrayRecord& record) noexcept;
  int failed() const noexcept;
  void describe_arrays() noexcept;
  Status encode() noexcept;
  FrameColumns frame_columns() const noexcept;

  Column<ArrayRecord> arrays_;
  Column<External> externals_;
  SourceTable sources_;
  // Results of finish().
  BufferLayout buffers_;
  Column<ArrayDescriptor> descriptors_;
  Column<std::uint64_t> buffer_sizes_;
  // Encoded in private memory: Cap'n Proto's builder follows the pointers that it has written, so other processes must
  // not be able to change them.
  Column<std::uint64_t> metadata_;
  Column<std::int64_t> views_;
  std::uint64_t total_bytes_ = 0;
  std::size_t metadata_bytes_ = 0;
};

}  // namespace shmtree::format
