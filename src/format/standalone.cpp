#include "format/standalone.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "format/schema_columns.h"
#include "format/segment_writer.h"
#include "platform/copy.h"

namespace shmtree::format {

namespace {

using At = schema::Array;

std::uint8_t flags_of(std::uint64_t descriptor) noexcept {
  return static_cast<std::uint8_t>(descriptor >> At::flags);
}
std::uint32_t buffer_of(std::uint64_t descriptor) noexcept {
  return static_cast<std::uint32_t>(descriptor >> At::buffer);
}

template <class T>
std::span<const T> all(const ColumnCursor<T>& column) noexcept {
  return {column.at, column.left()};
}

}  // namespace

Standalone::Standalone(const CheckedFrame& frame, Blocks blocks) : frame_(frame), own_(frame.reader().buffer_sizes()) {
  places_.resize(frame.reader().external_count());
  place_ranges(blocks);
  describe_arrays();
}

std::vector<std::uint32_t> Standalone::used_ranges() const {
  std::vector<std::uint32_t> used;
  for (const std::uint64_t descriptor : all(frame_.whole().arrays)) {
    if ((flags_of(descriptor) & kExternal) != 0) used.push_back(buffer_of(descriptor));
  }
  std::sort(used.begin(), used.end(), [this](std::uint32_t a, std::uint32_t b) {
    const External &left = frame_.reader().external(a), &right = frame_.reader().external(b);
    if (left.reference != right.reference) return left.reference < right.reference;
    return left.offset != right.offset ? left.offset < right.offset : a < b;
  });
  used.erase(std::unique(used.begin(), used.end()), used.end());
  return used;
}

// Sorted by place, ranges that overlap follow each other.
void Standalone::place_ranges(Blocks blocks) {
  std::uint32_t reference = kNoIndex;
  std::uint64_t begin = 0, end = 0;  // of the run, in its block; begin with the padding
  for (const std::uint32_t number : used_ranges()) {
    const External range = frame_.reader().external(number);
    if (range.reference != reference || range.offset >= end) {
      begin = range.offset / kBufferAlignment * kBufferAlignment;
      end = range.offset;
      runs_.push_back({blocks[range.reference].data() + range.offset, range.offset - begin, 0});
      reference = range.reference;
    }
    if (range.offset + range.bytes > end) {
      runs_.back().bytes += range.offset + range.bytes - end;
      end = range.offset + range.bytes;
    }
    places_[number] = {static_cast<std::uint32_t>(runs_.size() - 1), range.offset - begin};
  }
}

// What belongs to an array in `views`, its descriptor tells: an offset, and a stride for each dimension.
void Standalone::describe_arrays() {
  const std::int64_t* view = frame_.whole().views.at;
  for (std::uint64_t descriptor : all(frame_.whole().arrays)) {
    std::uint8_t flags = flags_of(descriptor);
    std::int64_t offset = (flags & kOffset) != 0 ? *view++ : 0;
    if ((flags & kExternal) != 0) {
      const Place& place = places_[buffer_of(descriptor)];
      offset += static_cast<std::int64_t>(place.offset);
      flags &= static_cast<std::uint8_t>(~(kExternal | kOffset));
      if (offset != 0) flags |= kOffset;
      descriptor &= ~(std::uint64_t{0xff} << At::flags | std::uint64_t{0xffffffff} << At::buffer);
      descriptor |= std::uint64_t{flags} << At::flags | std::uint64_t{own_.size() + place.run} << At::buffer;
    }
    if ((flags & kOffset) != 0) views_.push_back(offset);
    if ((flags & kStrided) != 0) {
      const std::size_t ndim = static_cast<std::uint8_t>(descriptor >> At::ndim);
      views_.insert(views_.end(), view, view + ndim);
      view += ndim;
    }
    descriptors_.push_back(descriptor);
  }
}

// The columns in the order of the schema's fields.
template <class Segment>
void Standalone::describe(Segment& segment) const noexcept {
  const ColumnCursors& whole = frame_.whole();
  segment.template copy<schema::kinds>(all(whole.kinds));
  segment.template copy<schema::lengths>(all(whole.lengths));
  segment.template copy<schema::ints>(all(whole.ints));
  segment.template copy<schema::floats>(all(whole.floats));
  segment.template copy<schema::text>(all(whole.text));
  segment.template copy<schema::arrays>(descriptors_);
  segment.template each<schema::buffers>(own_.size() + runs_.size(), [this](std::size_t i) { return size_of(i); });
  segment.template copy<schema::views>(views_);
  segment.template copy<schema::externals>(std::span<const External>());
}

Status Standalone::finish() {
  SegmentSize size(schema::Frame::kPointers);
  describe(size);
  metadata_bytes_ = size.words() * 8;
  std::uint64_t end = sizeof(FrameHeader) + metadata_bytes_;
  if (!own_.empty()) end = align_buffer(end) + frame_.reader().buffers().size();
  for (const Run& run : runs_) {
    end = align_buffer(end) + run.size();
    if (end > kMaxFrameBytes) break;
  }
  total_bytes_ = end;
  if (size.longest() <= kMaxColumnCount && metadata_bytes_ <= kMaxMetadataBytes && end <= kMaxFrameBytes) {
    return success();
  }
  return Error{.code = Code::kMessageTooLarge,
               .message =
                   "With all of its arrays the message has more than a frame can hold, 256 TiB and 4 GiB of "
                   "metadata."};
}

void Standalone::write(std::byte* out) const noexcept {
  write_header(out, metadata_bytes_, total_bytes_);
  SegmentWriter segment(out + sizeof(FrameHeader), schema::Frame::kPointers);
  describe(segment);
  std::uint64_t end = sizeof(FrameHeader) + metadata_bytes_;
  const auto zero_to = [&](std::uint64_t place) {
    std::memset(out + end, 0, place - end);
    end = place;
  };
  const auto append = [&](const std::byte* bytes, std::uint64_t count) {
    platform::copy_bytes(out + end, bytes, count);
    end += count;
  };
  if (!own_.empty()) {
    zero_to(align_buffer(end));
    append(frame_.reader().buffers().data(), frame_.reader().buffers().size());
  }
  for (const Run& run : runs_) {
    zero_to(align_buffer(end) + run.padding);
    append(run.begin, run.bytes);
  }
}

}  // namespace shmtree::format
