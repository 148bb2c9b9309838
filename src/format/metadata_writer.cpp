#include "format/metadata_writer.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "format/metadata_layout.h"
#include "platform/dcheck.h"
#include "schema/shmtree.capnp.h"

namespace shmtree::format {

namespace {

static_assert(::capnp::sizeInWords<schema::Frame>() == kFramePointers &&
              ::capnp::sizeInWords<schema::Arrays>() == kArraysPointers &&
              ::capnp::sizeInWords<schema::Array>() == kStructWords<ArrayDescriptor> &&
              ::capnp::sizeInWords<schema::External>() == kStructWords<External>);

template <class T>
void add_column(MetadataSize& size, std::span<const T> values) noexcept {
  size.longest = std::max<std::uint64_t>(size.longest, values.size());
  size.words += (values.size_bytes() + 7) / 8;
  if (kStructWords<T> != 0 && !values.empty()) ++size.words;  // tag
}

bool has_arrays(const FrameColumns& columns) noexcept {
  return with_arrays(columns, [](const auto&... column) { return (!column.empty() || ...); });
}

void copy_elements(std::uint64_t* to, std::span<const ArrayDescriptor> from) noexcept {
  for (const ArrayDescriptor& array : from) {
    *to++ = array.dtype | std::uint64_t{array.flags} << 8 | std::uint64_t{array.ndim} << 16 |
            std::uint64_t{array.buffer} << 32;
  }
}

void copy_elements(std::uint64_t* to, std::span<const External> from) noexcept {
  for (const External& range : from) {
    *to++ = range.reference;
    *to++ = range.offset;
    *to++ = range.bytes;
  }
}

template <class T>
void copy_elements(std::uint64_t* to, std::span<const T> from) noexcept {
  std::memcpy(to, from.data(), from.size_bytes());
}

// Writes structs and columns one after the other.
class Writer {
 public:
  explicit Writer(std::uint64_t* out) noexcept : end_(out) {}

  // Returns the pointers of a struct.
  std::uint64_t* pointers(std::uint64_t* pointer, std::size_t count) noexcept {
    *pointer = struct_pointer(offset_from(pointer), 0, count);
    return std::exchange(end_, end_ + count);
  }
  template <class T>
  void column(std::uint64_t* pointer, std::span<const T> values) noexcept {
    *pointer = 0;
    if (values.empty()) return;
    *pointer = list_pointer<T>(offset_from(pointer), values.size());
    if constexpr (kStructWords<T> != 0) *end_++ = tag_of<T>(values.size());
    const std::size_t words = (values.size_bytes() + 7) / 8;
    end_[words - 1] = 0;  // the padding
    copy_elements(end_, values);
    end_ += words;
  }
  const std::uint64_t* end() const noexcept { return end_; }

 private:
  std::uint64_t offset_from(const std::uint64_t* pointer) const noexcept {
    return static_cast<std::uint64_t>(end_ - pointer - 1);
  }
  std::uint64_t* end_;
};

}  // namespace

MetadataSize measure_metadata(const FrameColumns& columns) noexcept {
  MetadataSize size{.words = 1 + kFramePointers, .longest = 0};
  const auto add = [&size](const auto&... column) { (add_column(size, column), ...); };
  with_frame(columns, add);
  with_arrays(columns, add);
  if (has_arrays(columns)) size.words += kArraysPointers;
  return size;
}

void write_metadata(std::span<std::uint64_t> out, const FrameColumns& columns) noexcept {
  Writer to(out.data() + 1);
  std::uint64_t* pointer = to.pointers(out.data(), kFramePointers);
  const auto add = [&](const auto&... column) { (to.column(pointer++, column), ...); };
  with_frame(columns, add);
  *pointer = 0;
  if (has_arrays(columns)) {
    pointer = to.pointers(pointer, kArraysPointers);
    with_arrays(columns, add);
  }
  SHMTREE_DCHECK(to.end() == out.data() + out.size());
}

}  // namespace shmtree::format
