// Reads the nodes of a frame from its columns, which are in private memory and have untrusted contents.
//
// Every failure is sticky: afterwards failed() returns true, calls return zeros and empty views, and error() describes
// the first failure. So a walk may check failed() once per container instead of once per value. Check it before
// allocating memory for a count: a valid count does not exceed what is left in the frame.
// Thread safety: none. One thread may nest readers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/depth.h"
#include "format/frame_columns.h"
#include "format/layout.h"
#include "format/references.h"
#include "platform/dcheck.h"
#include "shmtree/base/kind.h"
#include "shmtree/base/result.h"

namespace shmtree::format {

struct Name {
  std::uint32_t index = 0;  // Names are numbered by first appearance, so the number can index a table of objects.
  bool fresh = false;       // True at its first appearance in this frame.
  std::string_view text{};  // In private memory, valid as long as the reader.
};

// The unread rest of one column. Uninitialised until the frame is loaded.
template <class T>
struct ColumnCursor {
  ColumnCursor() = default;
  explicit ColumnCursor(std::span<const T> column) noexcept : at(column.data()), end(column.data() + column.size()) {}

  const T* at;
  const T* end;
  bool is_over() const noexcept { return at == end; }
  std::size_t left() const noexcept { return static_cast<std::size_t>(end - at); }
};

struct ColumnCursors {
  ColumnCursor<std::uint8_t> kinds;
  ColumnCursor<std::uint8_t> lengths;
  ColumnCursor<std::int64_t> ints;
  ColumnCursor<double> floats;
  ColumnCursor<char> text;
  ColumnCursor<ArrayDescriptor> arrays;
  ColumnCursor<std::int64_t> views;
  template <class Use>
  void visit(Use use) noexcept {
    use(kinds, lengths, ints, floats, text, arrays, views);
  }
};

class NodeCursor {
 public:
  // Returns the next node's kind, or kInvalid at the end (which is a failure) and after a failure. Returns unknown
  // numbers unchanged: let the default of your switch call fail_kind().
  Kind next_kind() noexcept {
    if (columns_.kinds.is_over()) [[unlikely]]
      return fail("a node is missing"), Kind::kInvalid;
    return static_cast<Kind>(*columns_.kinds.at++);
  }
  // Returns the kind that next_kind() will return, or kInvalid at the end, without failing.
  Kind peek_kind() const noexcept {
    return columns_.kinds.is_over() ? Kind::kInvalid : static_cast<Kind>(*columns_.kinds.at);
  }
  std::int64_t next_int() noexcept {
    if (columns_.ints.is_over()) [[unlikely]]
      return fail("an int is missing"), 0;
    return *columns_.ints.at++;
  }
  double next_float() noexcept {
    if (columns_.floats.is_over()) [[unlikely]]
      return fail("a float is missing"), 0.0;
    return *columns_.floats.at++;
  }
  // Reads a number that is not a count of anything in this frame, such as maxlen or flags, and does not check it.
  [[gnu::always_inline]] std::uint64_t next_length() noexcept {
    if (columns_.lengths.is_over()) [[unlikely]]
      return fail("a length is missing"), 0;
    const std::uint8_t value = *columns_.lengths.at++;
    return value != kLengthEscape ? value : next_long_length();
  }
  // Reads flags or an enumerator. Fails if the number is larger than `max`.
  std::uint64_t next_flags(std::uint64_t max) noexcept {
    const std::uint64_t flags = next_length();
    return flags <= max ? flags : (fail("a node has unknown flags"), 0);
  }
  // Reads a number of items with `nodes_each` child nodes each. Fails if fewer nodes are left.
  std::uint64_t next_count(std::uint64_t nodes_each = 1) noexcept {
    SHMTREE_DCHECK(nodes_each != 0);
    const std::uint64_t count = next_length();
    if (count > columns_.kinds.left() / nodes_each) [[unlikely]]
      return fail("a container has more items than there are nodes"), 0;
    return count;
  }
  // Read the numbers of a kIntList or kFloatList as one run. The span is valid as long as the reader.
  std::span<const std::int64_t> next_ints() noexcept { return next_run(columns_.ints); }
  std::span<const double> next_floats() noexcept { return next_run(columns_.floats); }
  // Reads `bytes` bytes of text. The view points to private memory and is valid as long as the reader.
  [[gnu::always_inline]] std::string_view next_text(std::uint64_t bytes) noexcept {
    if (bytes > columns_.text.left()) [[unlikely]]
      return fail("text is missing"), std::string_view();
    const char* begin = columns_.text.at;
    columns_.text.at += bytes;
    return {begin, static_cast<std::size_t>(bytes)};
  }
  std::string_view next_string() noexcept { return next_text(next_length()); }
  Name next_name() noexcept {
    const std::uint64_t value = next_length(), number = value == 0 ? add_name() : value;
    if (number > names_->size() || number == 0) [[unlikely]]
      return fail("a name refers to a name that does not precede it"), Name();
    return {static_cast<std::uint32_t>(number - 1), value == 0, (*names_)[number - 1]};
  }
  // Skips the next name if it repeats an earlier one and its number takes one byte. A fast path: may return false for
  // other repeated names.
  bool next_name_again(std::uint32_t* index) noexcept {
    ColumnCursor<std::uint8_t>& lengths = columns_.lengths;
    if (lengths.is_over() || lengths.at[0] == 0 || lengths.at[0] == kLengthEscape) return false;
    if (lengths.at[0] > names_->size()) return false;
    *index = *lengths.at++ - 1u;
    return true;
  }
  // Returns the repeated name that next_name_again() has skipped.
  Name name_again(std::uint32_t index) const noexcept {
    SHMTREE_DCHECK(index < names_->size());
    return {index, false, (*names_)[index]};
  }
  // Number of names so far.
  std::size_t names() const noexcept { return names_->size(); }
  // Skips the next name if it is new and equals `expected`. A fast path: may return false for some names that are
  // equal.
  bool next_name_is(std::string_view expected) noexcept {
    const std::size_t bytes = expected.size();
    ColumnCursor<std::uint8_t>& lengths = columns_.lengths;
    if (lengths.left() < 2 || lengths.at[0] != 0 || lengths.at[1] != bytes || bytes == kLengthEscape) return false;
    if (bytes > columns_.text.left()) return false;
    if (bytes != 0 && std::memcmp(columns_.text.at, expected.data(), bytes) != 0)
      return false;  // empty text may have no address
    if (names_->size() == names_->capacity()) return false;
    names_->emplace_back(columns_.text.at, bytes);
    lengths.at += 2;
    columns_.text.at += bytes;
    return true;
  }
  // Reads a dtype outside an array descriptor (kNumpyScalar, kDType). Sets `description` if it is DType::kOther.
  DType next_dtype(Name& description) noexcept;

  // Call this before the children of a node. False (and failed) if the frame is deeper than kMaxDepth, or too deep for
  // this thread's stack; the latter counts as lack of memory, not as corruption. Call leave() once for each true.
  bool enter() noexcept { return depth_.enter_measured() || enter_deeper(); }
  void leave() noexcept { depth_.leave(); }
  std::size_t depth() const noexcept { return depth_.level(); }

  // Index of the node that next_kind() read last.
  std::size_t position() const noexcept { return static_cast<std::size_t>(columns_.kinds.at - kinds_begin_) - 1; }
  // Kind of the node that next_kind() read last, without the mark of format/references.h.
  Kind kind() const noexcept {
    SHMTREE_DCHECK(columns_.kinds.at != kinds_begin_);
    return unmarked(static_cast<Kind>(columns_.kinds.at[-1]));
  }
  std::size_t nodes() const noexcept { return static_cast<std::size_t>(columns_.kinds.end - kinds_begin_); }
  // The unread rest of the columns, for callers that reserve memory.
  const ColumnCursors& left() const noexcept { return columns_; }

  bool failed() const noexcept { return reason_ != nullptr; }
  // `reason` is a literal that completes "The frame is corrupt: ...". Ends all columns, so that later calls fail too.
  [[gnu::noinline, gnu::cold]] void fail(const char* reason) noexcept;
  void fail_kind(Kind kind) noexcept;
  // Fails for lack of memory; the frame is not reported as corrupt.
  void fail_for_memory() noexcept;
  // Valid if failed(). Returns kCorrupt, with what is wrong and where, or kOutOfSharedMemory.
  Error error() const;
  // Call after the last node. Returns the first failure, or kCorrupt if values are left over.
  Status finish();

 protected:
  // A subclass fills the columns, then calls begin(). `names` is empty, and must outlive this object.
  ColumnCursors& columns() noexcept { return columns_; }
  void begin(std::vector<std::string_view>& names) noexcept {
    SHMTREE_DCHECK(names.empty());
    kinds_begin_ = columns_.kinds.at;
    names_ = &names;
  }
  // Fails if the column has no more descriptors.
  const ArrayDescriptor* next_descriptor() noexcept {
    if (columns_.arrays.is_over()) [[unlikely]]
      return fail("an array descriptor is missing"), nullptr;
    return columns_.arrays.at++;
  }
  const std::int64_t* next_views(std::size_t count) noexcept {
    if (count > columns_.views.left()) return fail("an offset or stride is missing"), nullptr;
    return std::exchange(columns_.views.at, columns_.views.at + count);
  }

 private:
  [[gnu::noinline, gnu::cold]] bool enter_deeper() noexcept;
  std::uint64_t next_long_length() noexcept;
  // Reads a new name. Returns the number of names; 0 after a failure.
  std::uint64_t add_name() noexcept {
    const std::uint64_t bytes = next_length();
    if (bytes > columns_.text.left() || bytes > kMaxNameBytes || names_->size() == names_->capacity()) [[unlikely]]
      return add_name(bytes);
    names_->emplace_back(columns_.text.at, bytes);
    columns_.text.at += bytes;
    return names_->size();
  }
  std::uint64_t add_name(std::uint64_t bytes) noexcept;
  // Reads a length, then that many values.
  template <class T>
  std::span<const T> next_run(ColumnCursor<T>& column) noexcept {
    const std::uint64_t count = next_length();
    if (count > column.left()) return fail("a list has more numbers than the frame"), std::span<const T>();
    const T* begin = column.at;
    column.at += count;
    return {begin, static_cast<std::size_t>(count)};
  }

  ColumnCursors columns_;
  const std::uint8_t* kinds_begin_ = nullptr;
  std::vector<std::string_view>* names_ = nullptr;
  Depth depth_;
  const char* reason_ = nullptr;
  bool no_memory_ = false;  // true if reason_ is lack of memory
  bool no_stack_ = false;   // true if reason_ is lack of stack
  std::size_t failed_at_ = 0;
  std::uint8_t failed_kind_ = 0;
};

Error corrupt(std::string reason);
Error no_memory();

}  // namespace shmtree::format
