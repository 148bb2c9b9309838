// Collects the nodes of one message in columns, then writes them as a frame directly into its destination.
//
//   builder.clear();
//   builder.add_kind(Kind::kStrDict);  builder.add_length(1);
//   builder.add_name("reward");
//   builder.add_kind(Kind::kFloat);    builder.add_float(1.0);
//   Status status = builder.finish();              // places the buffers; total_bytes() is known from here on
//   builder.write_metadata(out);                   // microseconds at most, for any size of the buffers
//   builder.copy_buffers(out);                     // reads only the added memory, so it needs no interpreter lock
//
// Parts: NodeColumns receives the nodes, SourceTable lists the memory of their arrays, and BufferLayout assigns that
// memory to buffers of the frame.
// Memory that is passed by pointer must stay alive and unchanged until copy_buffers() has copied it. Thread safety:
// none. Reuse one builder for many messages: the columns keep their memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/array_source.h"
#include "format/buffer_layout.h"
#include "format/frame_columns.h"
#include "format/node_columns.h"
#include "shmtree/base/result.h"

namespace shmtree::format {

class FrameBuilder : public NodeColumns {
 public:
  // Drops the message, and keeps the memory for the next message. Takes a short, constant time.
  void clear() noexcept;

  // Adds an array (A). Never fails; an invalid shape is a bug of the caller.
  void add_array(const ArraySource& source) noexcept;
  // Adds the array descriptor (A) of plain bytes, such as a long string or a pickle.
  void add_blob(const void* bytes, std::size_t count, bool read_only = true) noexcept;
  // Adds bytes in another block, and returns their number for ArraySource::external. If one of the last few ranges is
  // equal, returns its number instead.
  std::uint32_t add_external(const External& range) noexcept;
  // Adds a kStr, or a kLongStr for long text. A long text must stay valid until copy_buffers() returns.
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

  // A position in the message. rewind() drops everything added since then, for example if part of a container turns out
  // to need pickle.
  struct Mark {
    NodeColumns::Mark nodes;
    SourceTable::Mark sources;
    std::size_t arrays, externals;
  };
  Mark mark() const noexcept { return {NodeColumns::mark(), sources_.mark(), arrays_.size(), externals_.size()}; }
  void rewind(const Mark& mark) noexcept;

  // Assigns offsets and measures the metadata. Call once, after the last node; the functions below are valid only
  // afterwards. Fails with kMessageTooLarge if a frame cannot hold the message, or kOutOfSharedMemory if there is no
  // memory for the columns.
  Status finish() noexcept;

  std::uint64_t total_bytes() const noexcept { return total_bytes_; }
  std::size_t metadata_bytes() const noexcept { return metadata_bytes_; }
  // Bytes that copy_buffers() will copy.
  std::uint64_t buffer_bytes() const noexcept { return buffers_.bytes(); }
  std::size_t buffer_count() const noexcept { return buffers_.size(); }

  // `out` has total_bytes() bytes, and is aligned to 8. Writes header and metadata (metadata_bytes() + 16 bytes).
  void write_metadata(std::byte* out) const noexcept;
  // Writes the rest of the frame, including padding. Accesses only the added memory and `out`, not the columns.
  void copy_buffers(std::byte* out) const noexcept;
  // Writes the whole frame: metadata and buffers. Reads only the builder's memory and the added memory.
  void write(std::byte* out) const noexcept;

 private:
  // The part of an array's description that is known before finish().
  struct ArrayRecord {
    std::uint8_t dtype;
    std::uint8_t flags;
    std::uint8_t ndim;
    std::uint32_t source;    // index into `sources_`, or into `externals_` with kExternal
    std::int64_t offset;     // first element, from the start of the source
    std::uint32_t geometry;  // number of its shape and strides in `sources_`; kNoIndex if contiguous
  };
  void add_strided(const ArraySource& source, std::uint64_t item, ArrayRecord& record) noexcept;
  int failed() const noexcept;
  void describe_arrays() noexcept;
  Status measure() noexcept;
  FrameColumns frame_columns() const noexcept;

  Column<ArrayRecord> arrays_;
  Column<External> externals_;
  SourceTable sources_;
  // Results of finish().
  BufferLayout buffers_;
  Column<ArrayDescriptor> descriptors_;
  Column<std::uint64_t> buffer_sizes_;
  Column<std::int64_t> views_;
  std::uint64_t total_bytes_ = 0;
  std::size_t metadata_bytes_ = 0;
};

}  // namespace shmtree::format
