// FrameBuilder's output: the size of the metadata, the metadata, and the copies of the buffers.
#include <cstring>

#include "format/frame_builder.h"
#include "format/segment_writer.h"
#include "platform/copy.h"
#include "schema/shmtree.columns.h"

namespace shmtree::format {

namespace {

// What the schema says, and segment_writer.h and the readers' structs rely on.
static_assert(schema::Frame::kWords == 0 && schema::Array::kPointers == 0 && schema::External::kPointers == 0);
static_assert(8 * offsetof(External, reference) == schema::External::reference);
static_assert(8 * offsetof(External, offset) == schema::External::offset);
static_assert(8 * offsetof(External, bytes) == schema::External::bytes);
static_assert(kReadOnly == +schema::Array::readOnly && kFortran == +schema::Array::fortran);
static_assert(kStrided == +schema::Array::strided && kOffset == +schema::Array::offset);
static_assert(kExternal == +schema::Array::external && kNoBuffer == +schema::Array::noBuffer);

// `count` items of `item` bytes, one after the other every `stride` bytes, to a place without gaps.
template <std::size_t item>
std::byte* pick(const std::byte* from, std::int64_t count, std::int64_t stride, std::byte* out) noexcept {
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(out + static_cast<std::size_t>(i) * item, from + i * stride, item);
  return out + static_cast<std::size_t>(count) * item;
}

std::byte* pick_row(const std::byte* from, std::int64_t count, std::int64_t stride, std::uint64_t item,
                    std::byte* out) noexcept {
  if (stride == static_cast<std::int64_t>(item)) {
    const std::size_t bytes = static_cast<std::size_t>(count) * item;
    std::memcpy(out, from, bytes);
    return out + bytes;
  }
  switch (item) {
    case 1: return pick<1>(from, count, stride, out);
    case 2: return pick<2>(from, count, stride, out);
    case 4: return pick<4>(from, count, stride, out);
    case 8: return pick<8>(from, count, stride, out);
    case 16: return pick<16>(from, count, stride, out);
    default:
      for (std::int64_t i = 0; i < count; ++i, out += item) std::memcpy(out, from + i * stride, item);
      return out;
  }
}

}  // namespace

// The columns in the order of the schema's fields.
template <class Segment>
void FrameBuilder::describe(Segment& segment) const noexcept {
  segment.template copy<schema::kinds>(kinds_);
  segment.template copy<schema::lengths>(lengths_);
  segment.template copy<schema::ints>(ints_);
  segment.template copy<schema::floats>(floats_);
  segment.template copy<schema::text>(text_);
  segment.template copy<schema::arrays>(descriptors_);
  segment.template each<schema::buffers>(layout_.size(), [this](std::size_t i) { return layout_[i].bytes; });
  segment.template copy<schema::views>(views_);
  segment.template copy<schema::externals>(externals_);
}

Status FrameBuilder::measure() noexcept {
  SegmentSize size(schema::Frame::kPointers);
  describe(size);
  if (size.longest() > kMaxColumnCount || size.words() * 8 > kMaxMetadataBytes) {
    return Error{.code = Code::kMessageTooLarge,
                 .message = "The message has " + std::to_string(kinds_.size()) + " nodes and " +
                            std::to_string(text_.size()) +
                            " bytes of short strings; a frame can describe 536,870,911 of each and 4 GiB in all."};
  }
  metadata_bytes_ = size.words() * 8;
  std::uint64_t end = sizeof(FrameHeader) + metadata_bytes_;
  for (Buffer& buffer : layout_) {
    buffer.offset = align_buffer(end);
    if (buffer.bytes > kMaxFrameBytes || buffer.offset + buffer.bytes > kMaxFrameBytes) {
      return Error{.code = Code::kMessageTooLarge, .message = "The message has more than 256 TiB."};
    }
    end = buffer.offset + buffer.bytes;
    buffer_bytes_ += buffer.bytes;
  }
  total_bytes_ = end;
  return success();
}

void FrameBuilder::write_metadata(std::byte* out) const noexcept {
  const FrameHeader header{.magic = kFrameMagic,
                           .metadata_bytes = static_cast<std::uint32_t>(metadata_bytes_),
                           .size_version_flags = total_bytes_ | std::uint64_t{kFrameVersion} << 48};
  std::memcpy(out, &header, sizeof(header));
  SegmentWriter segment(out + sizeof(header), schema::Frame::kPointers);
  describe(segment);
}

void FrameBuilder::copy_buffers(std::byte* out) const noexcept {
  std::uint64_t end = sizeof(FrameHeader) + metadata_bytes_;
  for (const Buffer& buffer : layout_) {
    // What was in this place before is nobody's business.
    std::memset(out + end, 0, buffer.offset - end);
    if (buffer.gathered == kNoIndex) {
      platform::copy_bytes(out + buffer.offset, buffer.begin, buffer.bytes);
    } else {
      gather(sources_[buffer.gathered], out + buffer.offset);
    }
    end = buffer.offset + buffer.bytes;
  }
}

void FrameBuilder::write(std::byte* out) const noexcept {
  write_metadata(out);
  copy_buffers(out);
}

// In C order, whatever the order in memory: rows of the last dimension, the others counted like an odometer.
void FrameBuilder::gather(const Source& source, std::byte* out) const noexcept {
  const std::int64_t* shape = &sides_[source.side];
  const std::int64_t* strides = shape + source.ndim;
  const std::size_t last = source.ndim - std::size_t{1};
  std::int64_t at[kMaxDims] = {};
  const std::byte* row = source.begin + source.first;
  for (;;) {
    out = pick_row(row, shape[last], strides[last], source.item_bytes, out);
    std::size_t dim = last;
    for (;;) {
      if (dim == 0) return;
      --dim;
      row += strides[dim];
      if (++at[dim] < shape[dim]) break;
      row -= strides[dim] * shape[dim];
      at[dim] = 0;
    }
  }
}

}  // namespace shmtree::format
