// Reads a frame that may have been written by anybody, and may be changed by them meanwhile.
//
// open() copies the metadata into private memory, then checks all of it that can be checked at once: header, Cap'n
// Proto message, sizes of the columns, places of the buffers. The cursor calls check the rest, node by node. Every
// failure is sticky: from then on failed() is true, calls return zeros and empty views, and error() says what was wrong
// first. So a walk may check at each container instead of at each value, but nothing may be allocated by a length
// before failed() was looked at: lengths come checked against what is left in the frame.
// Buffers are *not* copied: pointers given out lead into the frame, whose bytes others may still change. Text that is
// parsed (long strings, pickles) must be copied first.
// Thread safety: none. Nested readers in one thread are fine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "format/frame_builder.h"
#include "format/layout.h"
#include "shmtree/kind.h"
#include "shmtree/result.h"

namespace shmtree::format {

struct Name {
  std::uint32_t index = 0;  // names are numbered by first appearance: a table of objects can be kept by this
  bool fresh = false;       // its first appearance in this frame
  std::string_view text{};  // in private memory, valid as long as the reader
};

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

class FrameReader {
 public:
  // `frame` may be longer than the frame in it, never shorter. It must stay mapped while `data` pointers are used.
  // kCorrupt with the reason; kIncompatible for a frame of another version.
  static Result<FrameReader> open(std::span<const std::byte> frame);
  FrameReader(FrameReader&&) noexcept;
  FrameReader& operator=(FrameReader&&) noexcept;
  ~FrameReader();

  // Bytes of the frame, from its checked header.
  std::uint64_t total_bytes() const noexcept { return total_bytes_; }
  std::size_t metadata_bytes() const noexcept { return metadata_bytes_; }

  // --- the cursor -------------------------------------------------------------------------------------------------

  // The next node's kind; kInvalid at the end (a failure) and after a failure. Unknown numbers are returned as they
  // are: let the default of your switch call fail_kind().
  Kind next_kind() noexcept {
    if (kinds_.is_over()) [[unlikely]]
      return fail("a node is missing"), Kind::kInvalid;
    return static_cast<Kind>(*kinds_.at++);
  }
  // The kind that next_kind() will give; kInvalid at the end. Not a failure.
  Kind peek_kind() const noexcept { return kinds_.is_over() ? Kind::kInvalid : static_cast<Kind>(*kinds_.at); }
  std::int64_t next_int() noexcept {
    if (ints_.is_over()) [[unlikely]]
      return fail("an int is missing"), 0;
    return *ints_.at++;
  }
  double next_float() noexcept {
    if (floats_.is_over()) [[unlikely]]
      return fail("a float is missing"), 0.0;
    return *floats_.at++;
  }
  // A length that counts nothing in this frame (maxlen, flags).
  std::uint64_t next_length() noexcept {
    if (lengths_.is_over()) [[unlikely]]
      return fail("a length is missing"), 0;
    const std::uint8_t value = *lengths_.at++;
    return value != kLengthEscape ? value : next_long_length();
  }
  // A number of items with `nodes` child nodes each: no more than the nodes that are left.
  std::uint64_t next_count(std::uint64_t nodes_each = 1) noexcept {
    const std::uint64_t count = next_length();
    if (count > kinds_.left() / nodes_each) [[unlikely]]
      return fail("a container has more items than there are nodes"), 0;
    return count;
  }
  // The numbers of a kIntList or kFloatList, as one run; valid as long as the reader.
  std::span<const std::int64_t> next_ints() noexcept { return next_run(ints_); }
  std::span<const double> next_floats() noexcept { return next_run(floats_); }
  // Bytes of known number (T); in private memory, valid as long as the reader.
  std::string_view next_text(std::uint64_t bytes) noexcept {
    if (bytes > text_.left()) [[unlikely]]
      return fail("text is missing"), std::string_view();
    const char* begin = text_.at;
    text_.at += bytes;
    return {begin, static_cast<std::size_t>(bytes)};
  }
  std::string_view next_string() noexcept { return next_text(next_length()); }
  Name next_name() noexcept {
    const std::uint64_t value = next_length();
    if (value == 0) return new_name();
    if (value > names_->size()) [[unlikely]]
      return fail("a name refers to one that was not there before"), Name();
    return {static_cast<std::uint32_t>(value - 1), false, (*names_)[value - 1]};
  }
  // Number of names so far.
  std::size_t names() const noexcept { return names_->size(); }
  // Whether the next name is a new one that reads `expected`; then it is passed over. A guess that costs little: false
  // for some that are.
  bool next_name_is(std::string_view expected) noexcept {
    const std::size_t bytes = expected.size();
    if (lengths_.left() < 2 || lengths_.at[0] != 0 || lengths_.at[1] != bytes || bytes == kLengthEscape) return false;
    if (bytes > text_.left()) return false;
    if (bytes != 0 && std::memcmp(text_.at, expected.data(), bytes) != 0)
      return false;  // of no text there is no address
    if (names_->size() == names_->capacity()) return false;
    names_->emplace_back(text_.at, bytes);
    lengths_.at += 2;
    text_.at += bytes;
    return true;
  }
  // False after a failure; `out` is then undefined.
  bool next_array(ArrayInfo& out) noexcept;
  // The bytes of a kLongStr, kLongBytes...: in the frame itself, so copy before parsing.
  std::span<const std::byte> next_blob() noexcept;
  // A dtype on its own (kNumpyScalar, kDType): `item_bytes` is 0 for a described one.
  DType next_dtype(Name& description) noexcept;

  // Depth, for whoever walks: false (and failed) when deeper than kMaxDepth. Each true needs one leave().
  bool enter() noexcept { return depth_ < kMaxDepth ? (++depth_, true) : (fail("it is nested too deep"), false); }
  void leave() noexcept { --depth_; }

  // --- state ------------------------------------------------------------------------------------------------------

  std::size_t lengths_left() const noexcept { return lengths_.left(); }
  std::size_t ints_left() const noexcept { return ints_.left(); }
  std::size_t floats_left() const noexcept { return floats_.left(); }
  std::size_t arrays_left() const noexcept { return arrays_.left(); }
  std::size_t nodes() const noexcept { return static_cast<std::size_t>(kinds_.end - kinds_begin_); }
  std::size_t external_count() const noexcept { return external_count_; }
  // `index` as in ArrayInfo::buffer of an external array. The caller checks it against the block it refers to.
  External external(std::size_t index) const noexcept { return externals_[index]; }

  bool failed() const noexcept { return reason_ != nullptr; }
  // `reason` is a literal that completes "The frame is corrupt: ...". Ends all columns, so that later calls fail too.
  void fail(const char* reason) noexcept;
  void fail_kind(Kind kind) noexcept;
  // The frame is innocent of it.
  void fail_for_memory() noexcept;
  // Meaningful when failed(): a kCorrupt that says what is wrong and where, or kOutOfSharedMemory.
  Error error() const;
  // After the last node: a failure, or kCorrupt if something is left over.
  Status finish();

 private:
  struct Scratch;
  struct ReturnScratch {
    void operator()(Scratch* scratch) const noexcept;
  };
  friend struct ScratchPool;

  FrameReader() = default;
  Status load(std::span<const std::byte> frame);
  Status load_columns();
  Status place_buffers();
  std::uint64_t next_long_length() noexcept;
  Name new_name() noexcept;
  bool read_shape(ArrayInfo& out) noexcept;
  bool read_view(ArrayInfo& out) noexcept;
  bool locate(ArrayInfo& out, std::uint32_t buffer) noexcept;
  bool check_extent(const ArrayInfo& out) noexcept;

  // What is left of one column.
  template <class T>
  struct Rest {
    const T* at = nullptr;
    const T* end = nullptr;
    bool is_over() const noexcept { return at == end; }
    std::size_t left() const noexcept { return static_cast<std::size_t>(end - at); }
  };
  template <class Use>
  void with_columns(Use use) noexcept {
    use(kinds_, lengths_, ints_, floats_, text_, arrays_, views_);
  }
  // A length, and so many values.
  template <class T>
  std::span<const T> next_run(Rest<T>& column) noexcept {
    const std::uint64_t count = next_length();
    if (count > column.left()) return fail("a list has more numbers than there are"), std::span<const T>();
    const T* begin = column.at;
    column.at += count;
    return {begin, static_cast<std::size_t>(count)};
  }

  Rest<std::uint8_t> kinds_;
  Rest<std::uint8_t> lengths_;
  Rest<std::int64_t> ints_;
  Rest<double> floats_;
  Rest<char> text_;
  Rest<std::uint64_t> arrays_;  // descriptors, as words
  Rest<std::int64_t> views_;
  const std::uint64_t* buffer_sizes_ = nullptr;
  const std::uint64_t* buffer_offsets_ = nullptr;
  std::size_t buffer_count_ = 0;
  const External* externals_ = nullptr;
  std::size_t external_count_ = 0;
  std::size_t depth_ = 0;
  const char* reason_ = nullptr;
  bool no_memory_ = false;  // is the reason
  std::size_t failed_at_ = 0;
  std::uint8_t failed_kind_ = 0;

  const std::uint8_t* kinds_begin_ = nullptr;
  const std::byte* frame_ = nullptr;
  std::uint64_t total_bytes_ = 0;
  std::size_t metadata_bytes_ = 0;
  std::vector<std::string_view>* names_ = nullptr;
  std::unique_ptr<Scratch, ReturnScratch> scratch_;
};

}  // namespace shmtree::format
