#include "format/frame_builder.h"

#include <bit>

#include "format/metadata_writer.h"
#include "platform/dcheck.h"

namespace shmtree::format {

namespace {

constexpr std::size_t kLookBack = 64;

Error no_memory_to_describe() {
  return {.code = Code::kOutOfSharedMemory, .message = "Out of memory while the message was being encoded."};
}

}  // namespace

void FrameBuilder::clear() noexcept {
  NodeColumns::clear();
  arrays_.clear();
  externals_.clear();
  sources_.clear();
}

void FrameBuilder::add_array(const ArraySource& source) noexcept {
  SHMTREE_DCHECK(source.description.size() <= kMaxNameBytes);
  std::uint64_t item = item_bytes(source.dtype);
  if (source.dtype == DType::kOther) {
    item = source.item_bytes;
    add_name(source.description);
    add_length(item);
  }
  std::uint64_t bytes = item;
  for (std::size_t i = 0; i < source.ndim; ++i) {
    SHMTREE_DCHECK(source.shape[i] >= 0);
    const auto count = static_cast<std::uint64_t>(source.shape[i]);
    add_length(count);
    bytes *= count;
  }
  ArrayRecord record{.dtype = static_cast<std::uint8_t>(source.dtype),
                     .flags = static_cast<std::uint8_t>(source.read_only ? kReadOnly : 0),
                     .ndim = source.ndim,
                     .source = 0,
                     .offset = 0,
                     .geometry = kNoIndex};
  if (source.order == Order::kFortran && source.ndim > 1) record.flags |= kFortran;
  if (bytes == 0) {
    record.flags |= kNoBuffer;
  } else if (source.external != kNoIndex) {
    record.flags |= kExternal;
    record.source = source.external;
    record.offset = source.external_offset;
    if (source.order == Order::kStrided) record.geometry = sources_.add_geometry(source);
  } else if (source.order == Order::kStrided) {
    add_strided(source, item, record);
  } else {
    record.source = sources_.intern({.begin = static_cast<const std::byte*>(source.data),
                                     .bytes = bytes,
                                     .element_bytes = bytes,
                                     .item_bytes = item,
                                     .geometry = kNoIndex,
                                     .may_share = source.may_share,
                                     .whole_words = source.whole_words});
  }
  arrays_.push(record);
}

// A strided array becomes a plain range with permuted elements (a transposed array), a range with gaps that other
// arrays may share, or a range that is always gathered.
void FrameBuilder::add_strided(const ArraySource& source, std::uint64_t item, ArrayRecord& record) noexcept {
  std::int64_t low = 0;
  std::int64_t high = static_cast<std::int64_t>(item);
  std::uint64_t element_bytes = item;
  for (std::size_t i = 0; i < source.ndim; ++i) {
    const std::int64_t reach = (source.shape[i] - 1) * source.strides[i];
    (reach < 0 ? low : high) += reach;
    element_bytes *= static_cast<std::uint64_t>(source.shape[i]);
  }
  const auto bytes = static_cast<std::uint64_t>(high - low);
  SHMTREE_DCHECK(low <= 0 && high >= static_cast<std::int64_t>(item));
  record.geometry = sources_.add_geometry(source);
  record.offset = -low;
  record.source = sources_.intern({.begin = static_cast<const std::byte*>(source.data) + low,
                                   .bytes = bytes,
                                   .element_bytes = element_bytes,
                                   .item_bytes = item,
                                   .first = -low,
                                   .geometry = bytes == element_bytes ? kNoIndex : record.geometry,
                                   .ndim = source.ndim,
                                   .may_share = source.may_share,
                                   .unshared = element_bytes > bytes || (bytes > element_bytes && !source.may_share)});
}

void FrameBuilder::add_blob(const void* bytes, std::size_t count, bool read_only) noexcept {
  const auto shape = static_cast<std::int64_t>(count);
  add_array({.data = bytes, .shape = &shape, .ndim = 1, .dtype = DType::kUInt8, .read_only = read_only});
}

std::uint32_t FrameBuilder::add_external(const External& range) noexcept {
  const std::size_t count = externals_.size();
  for (std::size_t i = count; i > 0 && count - i < kLookBack; --i) {
    const External& earlier = externals_[i - 1];
    if (earlier.reference == range.reference && earlier.offset == range.offset && earlier.bytes == range.bytes)
      return static_cast<std::uint32_t>(i - 1);
  }
  externals_.push(range);
  return static_cast<std::uint32_t>(count);
}

void FrameBuilder::rewind(const Mark& mark) noexcept {
  // After a failure, columns may be shorter than the mark. That does no harm, since the message is not sent.
  if (failed() != 0) return;
  NodeColumns::rewind(mark.nodes);
  sources_.rewind(mark.sources);
  arrays_.truncate(mark.arrays);
  externals_.truncate(mark.externals);
}

// Returns a value other than 0 if memory ran out.
int FrameBuilder::failed() const noexcept {
  return NodeColumns::failed() | sources_.failed() | int{arrays_.failed()} | int{externals_.failed()};
}

Status FrameBuilder::finish() noexcept {
  total_bytes_ = 0;
  metadata_bytes_ = 0;
  buffers_.clear();
  views_.clear();
  descriptors_.clear();
  buffer_sizes_.clear();
  int lost = failed();
  if (lost == 0 && !arrays_.empty()) {
    buffers_.place(sources_);
    describe_arrays();
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffer_sizes_.push(buffers_.bytes_of(i));
    lost = buffers_.failed() | int{views_.failed()} | int{descriptors_.failed()} | int{buffer_sizes_.failed()};
  }
  return lost != 0 ? no_memory_to_describe() : measure();
}

// Writes the final descriptors (flags and buffer), and appends to `views_` the offsets and strides that are needed
// after placement.
void FrameBuilder::describe_arrays() noexcept {
  for (const ArrayRecord& record : arrays_) {
    std::uint8_t flags = record.flags;
    std::uint32_t buffer = record.source;
    std::int64_t offset = record.offset;
    bool strided = record.geometry != kNoIndex;
    if ((flags & kNoBuffer) != 0) {
      buffer = 0;
    } else if ((flags & kExternal) == 0) {
      const SourceRange& source = sources_[record.source];
      buffer = source.buffer;
      offset = source.gathered ? 0 : offset + source.buffer_offset;
      strided = strided && !source.gathered;
    }
    if (offset != 0) {
      flags |= kOffset;
      views_.push(offset);
    }
    if (strided) {
      flags |= kStrided;
      views_.append(sources_.geometry(record.geometry) + record.ndim, record.ndim);
    }
    descriptors_.push({record.dtype, flags, record.ndim, buffer});
  }
}

FrameColumns FrameBuilder::frame_columns() const noexcept {
  const auto all = [](const auto& column) { return std::span(column.data(), column.size()); };
  return with_columns(*this, [&](auto& kinds, auto& lengths, auto& ints, auto& floats, auto& text, auto&) {
    return FrameColumns{.kinds = all(kinds),
                        .lengths = all(lengths),
                        .text = all(text),
                        .ints = all(ints),
                        .floats = all(floats),
                        .arrays = all(descriptors_),
                        .buffers = all(buffer_sizes_),
                        .views = all(views_),
                        .externals = all(externals_)};
  });
}

Status FrameBuilder::measure() noexcept {
  const FrameColumns columns = frame_columns();
  const MetadataSize size = measure_metadata(columns);
  if (size.longest > kMaxColumnCount || size.words * 8 > kMaxMetadataBytes) {
    return Error{.code = Code::kMessageTooLarge,
                 .message = "The message has " + std::to_string(kinds()) + " nodes and " +
                            std::to_string(text().size()) +
                            " bytes of short strings; a frame can describe 536,870,911 of each and 4 GiB in all."};
  }
  metadata_bytes_ = size.words * 8;
  total_bytes_ = buffers_.assign_offsets(sizeof(FrameHeader) + metadata_bytes_);
  if (total_bytes_ > kMaxFrameBytes) {
    return Error{.code = Code::kMessageTooLarge, .message = "The message has more than 256 TiB."};
  }
  SHMTREE_DCHECK(sizeof(FrameHeader) + metadata_bytes_ + buffers_.bytes() <= total_bytes_);
  return success();
}

void FrameBuilder::write_metadata(std::byte* out) const noexcept {
  SHMTREE_DCHECK(sizeof(FrameHeader) + metadata_bytes_ <= total_bytes_);
  SHMTREE_DCHECK(std::bit_cast<std::uintptr_t>(out) % kWordBytes == 0);
  write_header(out, metadata_bytes_, total_bytes_);
  format::write_metadata({reinterpret_cast<std::uint64_t*>(out + sizeof(FrameHeader)), metadata_bytes_ / kWordBytes},
                         frame_columns());
}

void FrameBuilder::copy_buffers(std::byte* out) const noexcept {
  buffers_.copy(sources_, out, sizeof(FrameHeader) + metadata_bytes_);
}

void FrameBuilder::write(std::byte* out) const noexcept {
  write_metadata(out);
  copy_buffers(out);
}

}  // namespace shmtree::format
