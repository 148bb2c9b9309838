#include "format/metadata_reader.h"

#include <capnp/any.h>
#include <capnp/message.h>

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

// Checks that a list has structs of exactly the size in this schema. Cap'n Proto also reads smaller ones, with zeros
// for what they lack; a few bytes could then stand for millions of structs.
template <class Struct>
void check_structs(::capnp::AnyList::Reader list) {
  if (list.size() == 0) return;
  const std::size_t wanted = std::size_t{list.size()} * ::capnp::sizeInWords<Struct>() * sizeof(::capnp::word);
  if (list.getElementSize() != ::capnp::ElementSize::INLINE_COMPOSITE || list.getRawBytes().size() != wanted) {
    throw Malformed();
  }
}

void read_arrays(schema::Arrays::Reader from, MetadataScratch& scratch, FrameColumns& columns) {
  const auto arrays = from.getArrays();
  check_structs<schema::Array>(arrays);
  scratch.arrays.reserve(arrays.size());
  for (const schema::Array::Reader array : arrays) {
    scratch.arrays.push_back({array.getDtype(), array.getFlags(), array.getNdim(), array.getBuffer()});
  }
  columns.arrays = scratch.arrays;
  set_words(columns.buffers, from.getBuffers());
  set_words(columns.views, from.getViews());
  const auto externals = from.getExternals();
  check_structs<schema::External>(externals);
  scratch.externals.reserve(externals.size());
  for (const schema::External::Reader external : externals) {
    scratch.externals.push_back({external.getReference(), external.getOffset(), external.getBytes()});
  }
  columns.externals = scratch.externals;
}

// Returns true if the struct has nothing that this version of the schema does not know.
template <class Struct>
bool is_known(::capnp::AnyStruct::Reader any) {
  static_assert(::capnp::_::structSize<Struct>().data == 0 * ::capnp::WORDS);
  return any.getDataSection().size() == 0 && any.getPointerSection().size() <= ::capnp::sizeInWords<Struct>();
}

}  // namespace

// KJ requires this callback on the stack. AddressSanitizer would move it to its fake stack on the heap.
[[gnu::no_sanitize_address]] Status read_metadata(std::span<const std::uint64_t> words, MetadataScratch& scratch,
                                                  FrameColumns& columns) try {
  columns = {};
  scratch.arrays.clear();
  scratch.externals.clear();
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
  read_arrays(arrays, scratch, columns);
  return success();
} catch (const Malformed&) {
  return corrupt("its metadata is not a valid Cap'n Proto message of schema/shmtree.capnp");
}

}  // namespace shmtree::format
