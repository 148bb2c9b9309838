#include "format/metadata_reader.h"

#include <capnp/any.h>
#include <capnp/message.h>

#include <cstddef>
#include <utility>

#include "format/metadata_layout.h"
#include "format/node_cursor.h"
#include "schema/shmtree.capnp.h"

namespace shmtree::format {

namespace {

// Thrown for every fault that Cap'n Proto finds in a message.
struct Malformed {};

// Makes Cap'n Proto throw Malformed. By default it throws an exception with a stack trace, or, while another exception
// unwinds the stack, prints to stderr and continues.
class ThrowMalformed final : public ::kj::ExceptionCallback {
 public:
  void onRecoverableException(::kj::Exception&&) override { throw Malformed(); }
  void onFatalException(::kj::Exception&&) override { throw Malformed(); }
  StackTraceMode stackTraceMode() override { return StackTraceMode::NONE; }
};

// Cap'n Proto creates its default callback on first use, under a lock. Creating it at load time ensures
// that a forked child never inherits that lock locked.
[[maybe_unused]] const ::kj::ExceptionCallback& made_at_load = ::kj::getExceptionCallback();

class OneSegmentReader final : public ::capnp::MessageReader {
 public:
  explicit OneSegmentReader(std::span<const std::uint64_t> words)
      : MessageReader(options()), words_(reinterpret_cast<const ::capnp::word*>(words.data()), words.size()) {}

  ::kj::ArrayPtr<const ::capnp::word> getSegment(unsigned id) override { return id == 0 ? words_ : nullptr; }

 private:
  // Every list is read once, so the size of the frame already bounds the traversal.
  static ::capnp::ReaderOptions options() noexcept {
    return {.traversalLimitInWords = UINT64_MAX / 8, .nestingLimit = 4};
  }
  const ::kj::ArrayPtr<const ::capnp::word> words_;
};

template <class Column>
void set_bytes(Column& column, ::capnp::Data::Reader data) noexcept {
  column = {reinterpret_cast<typename Column::pointer>(data.begin()), data.size()};
}

// Cap'n Proto also accepts a list of structs as a list of numbers, but only a list of plain words can be used in place.
template <class T>
void set_words(std::span<const T>& column, ::capnp::AnyList::Reader list) {
  if (list.size() == 0) return;
  if (list.getElementSize() != ::capnp::ElementSize::EIGHT_BYTES) throw Malformed();
  column = {reinterpret_cast<const T*>(list.getRawBytes().begin()), list.size()};
}

// Cap'n Proto also accepts smaller structs, with zeros for what they lack; a few bytes could then stand for millions of
// structs. The tag, which has the size of the structs, precedes the first struct.
template <class T>
void set_structs(std::span<const T>& column, ::capnp::AnyList::Reader list) {
  if (list.size() == 0) return;
  if (list.getElementSize() != ::capnp::ElementSize::INLINE_COMPOSITE) throw Malformed();
  const auto* first = reinterpret_cast<const std::uint64_t*>(list.getRawBytes().begin());
  if (first[-1] != tag_of<T>(list.size())) throw Malformed();
  column = {reinterpret_cast<const T*>(first), list.size()};
}

// Returns true if the struct has no data or pointers beyond those of this version of the schema.
template <class Struct>
bool is_known(::capnp::AnyStruct::Reader any) {
  static_assert(::capnp::_::structSize<Struct>().data == 0 * ::capnp::WORDS);
  return any.getDataSection().size() == 0 && any.getPointerSection().size() <= ::capnp::sizeInWords<Struct>();
}

// Reads messages of other writers, and refuses malformed ones. KJ requires the callback on the stack. AddressSanitizer
// would move it to its fake stack on the heap.
[[gnu::no_sanitize_address, gnu::noinline]] Status read_any_order(std::span<const std::uint64_t> words,
                                                                  FrameColumns& columns) try {
  const ThrowMalformed callback;
  OneSegmentReader message(words);
  const auto root = message.getRoot<::capnp::AnyStruct>();
  if (!is_known<schema::Frame>(root)) return corrupt("it has columns that this version does not know");
  const auto frame = root.as<schema::Frame>();
  set_bytes(columns.kinds, frame.getKinds());
  set_bytes(columns.lengths, frame.getLengths());
  set_bytes(columns.text, frame.getText());
  set_words(columns.ints, frame.getInts());
  set_words(columns.floats, frame.getFloats());
  if (!frame.hasArrays()) return success();
  const schema::Arrays::Reader arrays = frame.getArrays();
  if (!is_known<schema::Arrays>(arrays)) return corrupt("it has columns that this version does not know");
  set_structs(columns.arrays, arrays.getArrays());
  set_words(columns.buffers, arrays.getBuffers());
  set_words(columns.views, arrays.getViews());
  set_structs(columns.externals, arrays.getExternals());
  return success();
} catch (const Malformed&) {
  return corrupt("its metadata is not a valid Cap'n Proto message of schema/shmtree.capnp");
}

// Reads the output of write_metadata() without the library. In the order that write_metadata() uses, each pointer can
// have only one value.
class WrittenOrder {
 public:
  explicit WrittenOrder(std::span<const std::uint64_t> words) noexcept
      : at_(words.data()), end_(words.data() + words.size()) {}

  // Returns false if the message is in another order, or malformed.
  bool read(FrameColumns& columns) noexcept {
    if (at_ == end_) return false;
    const std::uint64_t* pointer = pointers(at_++, kFramePointers);
    const auto set = [&](auto&... column) { return (this->set(pointer++, column) && ...); };
    if (pointer == nullptr || !with_frame(columns, set)) return false;
    if (*pointer == 0) return at_ == end_;
    pointer = pointers(pointer, kArraysPointers);
    return pointer != nullptr && with_arrays(columns, set) && at_ == end_;
  }

 private:
  // Returns the pointers of a struct, or null.
  const std::uint64_t* pointers(const std::uint64_t* pointer, std::size_t count) noexcept {
    if (*pointer != struct_pointer(offset_from(pointer), 0, count) || !has(count)) return nullptr;
    return std::exchange(at_, at_ + count);
  }
  template <class T>
  bool set(const std::uint64_t* pointer, std::span<const T>& values) noexcept {
    if (*pointer == 0) return true;
    std::uint64_t count = *pointer >> 35;
    std::uint64_t words = (count * sizeof(T) + 7) / 8;
    if constexpr (kStructWords<T> != 0) words = count, count /= kStructWords<T>;
    if (*pointer != list_pointer<T>(offset_from(pointer), count)) return false;
    if constexpr (kStructWords<T> != 0) {
      if (!has(1) || *at_++ != tag_of<T>(count)) return false;
    }
    if (!has(words)) return false;
    values = {reinterpret_cast<const T*>(at_), static_cast<std::size_t>(count)};
    at_ += words;
    return true;
  }
  bool has(std::uint64_t words) const noexcept { return words <= static_cast<std::uint64_t>(end_ - at_); }
  std::uint64_t offset_from(const std::uint64_t* pointer) const noexcept {
    return static_cast<std::uint64_t>(at_ - pointer - 1);
  }

  const std::uint64_t* at_;
  const std::uint64_t* end_;
};

}  // namespace

Status read_metadata(std::span<const std::uint64_t> words, FrameColumns& columns) {
  columns = {};
  if (WrittenOrder(words).read(columns)) [[likely]]
    return success();
  columns = {};
  return read_any_order(words, columns);
}

}  // namespace shmtree::format
