#include "format/standalone.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "format/metadata_writer.h"
#include "platform/copy.h"

namespace shmtree::format {

namespace {

template <class T>
std::span<const T> all(const ColumnCursor<T>& column) noexcept {
  return {column.at, column.left()};
}

}  // namespace

Standalone::Standalone(const CheckedFrame& frame, Blocks blocks) : frame_(frame), own_(frame.reader().buffer_sizes()) {
  positions_.resize(frame.reader().external_count());
  place_ranges(blocks);
  describe_arrays();
  buffers_.assign(own_.begin(), own_.end());
  for (const Run& run : runs_) buffers_.push_back(run.size());
}

std::vector<std::uint32_t> Standalone::used_ranges() const {
  std::vector<std::uint32_t> used;
  for (const ArrayDescriptor& array : all(frame_.whole().arrays)) {
    if ((array.flags & kExternal) != 0) used.push_back(array.buffer);
  }
  std::sort(used.begin(), used.end(), [this](std::uint32_t a, std::uint32_t b) {
    const External &left = frame_.reader().external(a), &right = frame_.reader().external(b);
    if (left.reference != right.reference) return left.reference < right.reference;
    return left.offset != right.offset ? left.offset < right.offset : a < b;
  });
  used.erase(std::unique(used.begin(), used.end()), used.end());
  return used;
}

// Sorts the ranges by block and offset, so that overlapping ranges follow each other.
void Standalone::place_ranges(Blocks blocks) {
  std::uint32_t reference = kNoIndex;
  std::uint64_t begin = 0, end = 0;  // of the run, in its block; begin includes the padding
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
    positions_[number] = {static_cast<std::uint32_t>(runs_.size() - 1), range.offset - begin};
  }
}

// The flags of a descriptor say what `views` has for its array: an offset, and a stride for each dimension.
void Standalone::describe_arrays() {
  const std::int64_t* view = frame_.whole().views.at;
  for (ArrayDescriptor array : all(frame_.whole().arrays)) {
    std::int64_t offset = (array.flags & kOffset) != 0 ? *view++ : 0;
    if ((array.flags & kExternal) != 0) {
      const Position& position = positions_[array.buffer];
      offset += static_cast<std::int64_t>(position.offset);
      array.flags &= static_cast<std::uint8_t>(~(kExternal | kOffset));
      if (offset != 0) array.flags |= kOffset;
      array.buffer = static_cast<std::uint32_t>(own_.size() + position.run);
    }
    if ((array.flags & kOffset) != 0) views_.push_back(offset);
    if ((array.flags & kStrided) != 0) {
      views_.insert(views_.end(), view, view + array.ndim);
      view += array.ndim;
    }
    arrays_.push_back(array);
  }
}

FrameColumns Standalone::columns() const noexcept {
  const ColumnCursors& whole = frame_.whole();
  return {.kinds = all(whole.kinds),
          .lengths = all(whole.lengths),
          .text = all(whole.text),
          .ints = all(whole.ints),
          .floats = all(whole.floats),
          .arrays = arrays_,
          .buffers = buffers_,
          .views = views_,
          .externals = {}};
}

Status Standalone::finish() {
  const MetadataSize size = measure_metadata(columns());
  metadata_bytes_ = size.words * 8;
  std::uint64_t end = sizeof(FrameHeader) + metadata_bytes_;
  if (!own_.empty()) end = align_buffer(end) + frame_.reader().buffers().size();
  for (const Run& run : runs_) {
    end = align_buffer(end) + run.size();
    if (end > kMaxFrameBytes) break;
  }
  total_bytes_ = end;
  if (size.longest <= kMaxColumnCount && metadata_bytes_ <= kMaxMetadataBytes && end <= kMaxFrameBytes) {
    return success();
  }
  return Error{.code = Code::kMessageTooLarge,
               .message =
                   "The message, with all of its arrays, exceeds the limits of a frame: 256 TiB in total, and 4 GiB of "
                   "metadata."};
}

void Standalone::write(std::byte* out) const noexcept {
  write_header(out, metadata_bytes_, total_bytes_);
  write_metadata({reinterpret_cast<std::uint64_t*>(out + sizeof(FrameHeader)), metadata_bytes_ / 8}, columns());
  std::uint64_t end = sizeof(FrameHeader) + metadata_bytes_;
  const auto zero_to = [&](std::uint64_t position) {
    std::memset(out + end, 0, position - end);
    end = position;
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
