// Collects the nodes of one message in columns, then writes them as a frame straight into its place.
//
//   builder.clear();
//   builder.add_kind(Kind::kStrDict);  builder.add_length(1);
//   builder.add_name("reward");
//   builder.add_kind(Kind::kFloat);    builder.add_float(1.0);
//   Status status = builder.finish();              // the size is known from here on: total_bytes()
//   builder.write_metadata(out);                   // microseconds at most, whatever the buffers' size
//   builder.copy_buffers(out);                     // reads only the memory that was added: no interpreter lock needed
//
// Which node takes what from which column stands with the kinds in shmtree/kind.h. The caller appends in exactly that
// order; nothing is checked here, but a reader refuses a frame whose columns do not fit.
// Memory given by pointer is not copied until copy_buffers(): it must stay alive and unchanged until then.
// Thread safety: none. Reuse one builder for many messages: the columns keep their memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "format/column.h"
#include "format/layout.h"
#include "shmtree/kind.h"
#include "shmtree/result.h"

namespace shmtree::format {

inline constexpr std::uint32_t kNoIndex = UINT32_MAX;

enum class Order : std::uint8_t { kC, kFortran, kStrided };

// An array as its owner has it. Pointers must be valid during add_array(), `data` until copy_buffers().
struct ArraySource {
  const void* data = nullptr;             // the first element (index 0 in every dimension)
  const std::int64_t* shape = nullptr;    // `ndim` counts, none negative, their product times the item checked by you
  const std::int64_t* strides = nullptr;  // bytes, read with Order::kStrided only
  std::uint8_t ndim = 0;                  // at most kMaxDims
  Order order = Order::kC;
  DType dtype = DType::kOther;
  bool read_only = false;
  // Set for an array that does not own its memory: it may overlap another one of this message. Overlapping arrays are
  // stored once, as views of one buffer, unless that would take more bytes than storing each of them.
  bool may_share = false;
  std::uint32_t external = kNoIndex;  // from add_external(): the elements are there and are not copied
  std::int64_t external_offset = 0;   // of the first element, from the start of that external range
  std::uint64_t item_bytes = 0;       // for DType::kOther; otherwise known
  std::string_view description{};     // for DType::kOther: at most kMaxNameBytes
};

// A range of bytes in another block. `reference` numbers the blocks that a message refers to; which block it is, is
// kept by whoever moves the frame.
struct External {
  std::uint32_t reference = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

class FrameBuilder {
 public:
  // Forgets the message, keeps the memory. Cheap.
  void clear() noexcept;

  // --- nodes, in preorder -----------------------------------------------------------------------------------------

  void add_kind(Kind kind) noexcept { kinds_.push(static_cast<std::uint8_t>(kind)); }
  void add_int(std::int64_t value) noexcept { ints_.push(value); }
  void add_float(double value) noexcept { floats_.push(value); }
  void add_length(std::uint64_t value) noexcept {
    if (value < kLengthEscape) [[likely]] {
      lengths_.push(static_cast<std::uint8_t>(value));
    } else {
      lengths_.push(kLengthEscape);
      ints_.push(static_cast<std::int64_t>(value));
    }
  }
  // Bytes whose number the reader knows from elsewhere (T).
  void add_text(const void* bytes, std::size_t count) noexcept { text_.append(bytes, count); }
  // Their number, then the bytes (S).
  void add_string(const void* bytes, std::size_t count) noexcept {
    add_length(count);
    text_.append(bytes, count);
  }
  void add_string(std::string_view text) noexcept { add_string(text.data(), text.size()); }
  // A key, field, class or dtype description (N): at most kMaxNameBytes. Repeats of one message cost one byte.
  // Returns its number among the names of this message.
  std::uint32_t add_name(std::string_view name) noexcept;
  // Such a name again, by what add_name() returned for it in this message.
  void add_known_name(std::uint32_t number) noexcept { add_length(std::uint64_t{number} + 1); }
  // All that was added to the text so far, names and bytes among it; until the next call.
  std::string_view text() const noexcept { return {text_.data(), text_.size()}; }
  // Whether so many bytes belong into a raw buffer (kLongStr...) instead of text.
  bool is_long(std::size_t count) const noexcept {
    return count > kMaxInlineText || text_.size() + count > kTextComfort;
  }
  // An array (A). Never fails; a shape that cannot be is a caller's bug.
  void add_array(const ArraySource& source) noexcept;
  // The array descriptor (A) of plain bytes: long strings, pickles.
  void add_blob(const void* bytes, std::size_t count, bool read_only = true) noexcept;
  // Bytes in another block, for ArraySource::external. A range added again soon gets the same number.
  std::uint32_t add_external(const External& range) noexcept;

  // The beginning of a node that takes a number first, mostly of items.
  template <class Number>
  void begin_node(Kind kind, Number number) noexcept {
    add_kind(kind);
    add_length(static_cast<std::uint64_t>(number));
  }
  // One node, whole.
  void add_int_node(std::int64_t value) noexcept { add_kind(Kind::kInt), add_int(value); }
  void add_float_node(double value) noexcept { add_kind(Kind::kFloat), add_float(value); }
  void add_bool_node(bool value) noexcept { add_kind(value ? Kind::kTrue : Kind::kFalse); }
  void add_none_node() noexcept { add_kind(Kind::kNone); }
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

  // Depth, for whoever walks: false when the tree would be deeper than kMaxDepth. Each true needs one leave().
  bool enter() noexcept { return depth_ < kMaxDepth ? (++depth_, true) : false; }
  void leave() noexcept { --depth_; }

  // --- taking back ------------------------------------------------------------------------------------------------

  // A place in the message. rewind() drops everything added since, for instance when part of a container turns out to
  // need pickle.
  struct Mark {
    std::array<std::size_t, 9> sizes;  // as with_columns() has them
    std::size_t sources, depth;
  };
  Mark mark() const noexcept;
  void rewind(const Mark& mark) noexcept;

  // Puts another kind on an earlier node: the position is kinds() before its add_kind().
  std::size_t kinds() const noexcept { return kinds_.size(); }
  void set_kind(std::size_t position, Kind kind) noexcept { kinds_[position] = static_cast<std::uint8_t>(kind); }

  // --- writing ----------------------------------------------------------------------------------------------------

  // Decides where everything goes. kMessageTooLarge: more than a frame can hold; kOutOfSharedMemory: no memory for the
  // columns. Call once, after the last node; only then the following are meaningful.
  Status finish() noexcept;

  std::uint64_t total_bytes() const noexcept { return total_bytes_; }
  std::size_t metadata_bytes() const noexcept { return metadata_bytes_; }
  // Bytes that copy_buffers() will move.
  std::uint64_t buffer_bytes() const noexcept { return buffer_bytes_; }
  std::size_t buffer_count() const noexcept { return layout_.size(); }

  // `out` has total_bytes() bytes. Writes header and metadata (metadata_bytes() + 16 bytes).
  void write_metadata(std::byte* out) const noexcept;
  // Writes the rest, padding included. Touches neither the columns nor anything but the memory added and `out`.
  void copy_buffers(std::byte* out) const noexcept;
  void write(std::byte* out) const noexcept;

 private:
  // Text stays far under Cap'n Proto's limit of 512 MiB: beyond this, every string becomes a raw buffer.
  static constexpr std::size_t kTextComfort = std::size_t{1} << 28;
  static constexpr std::size_t kNameSlots = 256;

  struct NameRef {
    std::uint32_t offset;
    std::uint32_t bytes;
  };
  // One array, as far as it is known before finish().
  struct ArrayRecord {
    std::uint8_t dtype;
    std::uint8_t flags;
    std::uint8_t ndim;
    std::uint32_t source;  // of `sources_`, or of `externals_` with kExternal
    std::int64_t offset;   // of the first element, from the start of the source
    std::uint32_t side;    // of its shape and strides in `sides_`, kNoIndex when contiguous
  };
  // A range of the caller's memory that arrays need.
  struct Source {
    const std::byte* begin = nullptr;
    std::uint64_t bytes = 0;          // from begin to the end of the last element
    std::uint64_t element_bytes = 0;  // of the elements alone
    std::uint64_t item_bytes = 0;
    std::int64_t first = 0;         // of the first element, from begin
    std::uint32_t side = kNoIndex;  // shape and strides of a range with gaps: gathered when nobody shares it
    std::uint8_t ndim = 0;
    bool may_share = false;
    bool alone = false;  // never shared: its elements overlap each other, or it was not declared to share
    // Set by finish().
    bool gathered = false;
    std::uint32_t leader = 0;        // of the cluster that shares one buffer: the source added first
    std::uint32_t buffer = 0;        // number of the buffer
    std::int64_t buffer_at = 0;      // of `begin` in that buffer
    const std::byte* low = nullptr;  // of the whole cluster, at its leader
    const std::byte* high = nullptr;
  };
  // One raw buffer of the frame.
  struct Buffer {
    const std::byte* begin;
    std::uint64_t bytes;
    std::uint64_t offset;    // in the frame
    std::uint32_t gathered;  // of `sources_`: elements are picked one by one; kNoIndex for a plain copy
  };

  void add_source_array(const ArraySource& source, std::uint64_t item, ArrayRecord& record) noexcept;
  std::uint32_t side_of(const ArraySource& source) noexcept;
  std::uint32_t source_of(const Source& wanted) noexcept;
  bool same_side(const Source& a, const Source& b) const noexcept;
  void rebuild_index(std::size_t slots) noexcept;
  bool any_failed() const noexcept;
  void place_alone() noexcept;
  void place_shared() noexcept;
  void place_cluster(std::size_t begin, std::size_t end) noexcept;
  void merge(std::size_t begin, std::size_t end) noexcept;
  void place_views() noexcept;
  Status measure() noexcept;
  template <class Segment>
  void describe(Segment& segment) const noexcept;
  void gather(const Source& source, std::byte* out) const noexcept;

  // What nodes are appended to, in no order; sources_ apart, which have an index.
  template <class Self, class Use>
  static auto with_columns(Self& self, Use use) noexcept {
    return use(self.kinds_, self.lengths_, self.ints_, self.floats_, self.text_, self.names_, self.arrays_, self.sides_,
               self.externals_);
  }

  Column<std::uint8_t> kinds_;
  Column<std::uint8_t> lengths_;
  Column<std::int64_t> ints_;
  Column<double> floats_;
  Column<char> text_;
  Column<NameRef> names_;
  Column<ArrayRecord> arrays_;
  Column<std::int64_t> sides_;
  Column<Source> sources_;
  Column<External> externals_;
  std::size_t depth_ = 0;
  bool any_share_ = false;

  // Open addressing over sources_ by (begin, bytes): index + 1, 0 for free. Only kept once there are several.
  Column<std::uint32_t> source_index_;
  // The latest name with each hash. Entries are hints, checked against the names of this message, so never cleared.
  std::uint32_t name_slots_[kNameSlots] = {};

  // Results of finish().
  Column<Buffer> layout_;
  Column<std::uint64_t> descriptors_;
  Column<std::int64_t> views_;
  Column<std::uint32_t> order_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t buffer_bytes_ = 0;
  std::size_t metadata_bytes_ = 0;
};

}  // namespace shmtree::format
