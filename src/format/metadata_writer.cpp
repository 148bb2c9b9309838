#include "format/metadata_writer.h"

#include <capnp/message.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "schema/shmtree.capnp.h"

namespace shmtree::format {

namespace {

// Builds in given memory, which is its only segment. Cap'n Proto's MallocMessageBuilder can begin with a given segment
// too, but it zeroes that segment when it is destroyed.
class InPlaceBuilder final : public ::capnp::MessageBuilder {
 public:
  explicit InPlaceBuilder(::kj::ArrayPtr<::capnp::word> zeroed) noexcept : segment_(zeroed) {}

  ::kj::ArrayPtr<::capnp::word> allocateSegment(unsigned minimum_words) override {
    KJ_REQUIRE(minimum_words <= segment_.size(), "the metadata is larger than measured");
    return std::exchange(segment_, nullptr);
  }

 private:
  ::kj::ArrayPtr<::capnp::word> segment_;
};

// Adds up the words of lists as Cap'n Proto lays them out.
class Measure {
 public:
  void bytes(std::size_t count) noexcept { add(count, (count + 7) / 8); }
  void words(std::size_t count) noexcept { add(count, count); }
  template <class Struct>
  void structs(std::size_t count) noexcept {
    const std::size_t words = count * ::capnp::sizeInWords<Struct>();
    add(words, words + (count != 0 ? 1 : 0));  // a word before the first element describes all of them
  }
  template <class Struct>
  void one() noexcept {
    size_.words += ::capnp::sizeInWords<Struct>();
  }
  const MetadataSize& size() const noexcept { return size_; }

 private:
  void add(std::uint64_t elements, std::uint64_t words) noexcept {
    size_.longest = std::max(size_.longest, elements);
    size_.words += words;
  }
  MetadataSize size_{.words = 1, .longest = 0};  // pointer to the root
};

template <class Values>
unsigned count_of(const Values& values) noexcept {
  return static_cast<unsigned>(values.size());
}

template <class Values>
void copy_bytes_to(::capnp::Data::Builder to, const Values& from) noexcept {
  std::memcpy(to.begin(), from.data(), from.size());
}

template <class T>
::kj::ArrayPtr<const T> kj_array(std::span<const T> values) noexcept {
  return {values.data(), values.size()};
}

bool has_arrays(const FrameColumns& columns) noexcept {
  return !columns.arrays.empty() || !columns.buffers.empty() || !columns.views.empty() || !columns.externals.empty();
}

void write_arrays(schema::Arrays::Builder to, const FrameColumns& columns) {
  if (!columns.arrays.empty()) {
    auto arrays = to.initArrays(count_of(columns.arrays));
    for (unsigned i = 0; i < arrays.size(); ++i) {
      const ArrayDescriptor& from = columns.arrays[i];
      schema::Array::Builder array = arrays[i];
      array.setDtype(from.dtype);
      array.setFlags(from.flags);
      array.setNdim(from.ndim);
      array.setBuffer(from.buffer);
    }
  }
  if (!columns.buffers.empty()) to.setBuffers(kj_array(columns.buffers));
  if (!columns.views.empty()) to.setViews(kj_array(columns.views));
  if (!columns.externals.empty()) {
    auto externals = to.initExternals(count_of(columns.externals));
    for (unsigned i = 0; i < externals.size(); ++i) {
      const External& from = columns.externals[i];
      schema::External::Builder external = externals[i];
      external.setReference(from.reference);
      external.setOffset(from.offset);
      external.setBytes(from.bytes);
    }
  }
}

}  // namespace

MetadataSize measure_metadata(const FrameColumns& columns) noexcept {
  Measure measure;
  measure.one<schema::Frame>();
  measure.bytes(columns.kinds.size());
  measure.bytes(columns.lengths.size());
  measure.bytes(columns.text.size());
  measure.words(columns.ints.size());
  measure.words(columns.floats.size());
  if (has_arrays(columns)) {
    measure.one<schema::Arrays>();
    measure.structs<schema::Array>(columns.arrays.size());
    measure.words(columns.buffers.size());
    measure.words(columns.views.size());
    measure.structs<schema::External>(columns.externals.size());
  }
  return measure.size();
}

void write_metadata(std::span<std::uint64_t> out, const FrameColumns& columns) noexcept {
  std::memset(out.data(), 0, out.size_bytes());
  InPlaceBuilder message({reinterpret_cast<::capnp::word*>(out.data()), out.size()});
  auto frame = message.initRoot<schema::Frame>();
  copy_bytes_to(frame.initKinds(count_of(columns.kinds)), columns.kinds);
  if (!columns.lengths.empty()) copy_bytes_to(frame.initLengths(count_of(columns.lengths)), columns.lengths);
  if (!columns.text.empty()) copy_bytes_to(frame.initText(count_of(columns.text)), columns.text);
  if (!columns.ints.empty()) frame.setInts(kj_array(columns.ints));
  if (!columns.floats.empty()) frame.setFloats(kj_array(columns.floats));
  if (has_arrays(columns)) write_arrays(frame.initArrays(), columns);
}

}  // namespace shmtree::format
