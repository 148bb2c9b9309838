// FrameBuilder's output: the size of the metadata, the Cap'n Proto message, and the copies of the buffers.
#include <capnp/message.h>

#include <cstring>
#include <exception>

#include "format/frame_builder.h"
#include "platform/copy.h"
#include "schema/shmtree.capnp.h"

namespace shmtree::format {

namespace {

constexpr std::uint64_t words_of(std::uint64_t bytes) noexcept {
  return (bytes + 7) / 8;
}

template <class ListBuilder, class T>
void fill(ListBuilder list, const Column<T>& values) {
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, values[i]);
}

template <class T>
void fill(::capnp::Data::Builder data, const Column<T>& values) {
  std::memcpy(data.begin(), values.data(), values.size());
}

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

Status FrameBuilder::measure() noexcept {
  const std::size_t counts[] = {kinds_.size(),       lengths_.size(), ints_.size(),  floats_.size(),       text_.size(),
                                descriptors_.size(), layout_.size(),  views_.size(), externals_.size() * 3};
  std::uint64_t words = 1 + ::capnp::sizeInWords<schema::Frame>();
  bool fits = true;
  for (const std::size_t count : counts) fits = fits && count <= kMaxColumnCount;
  for (const std::size_t bytes : {kinds_.bytes(), lengths_.bytes(), text_.bytes()}) words += words_of(bytes);
  words += ints_.size() + floats_.size() + layout_.size() + views_.size();
  // Lists of structs are preceded by a word that describes them.
  if (!descriptors_.empty()) words += 1 + descriptors_.size();
  if (!externals_.empty()) words += 1 + externals_.size() * words_of(sizeof(External));
  if (!fits || words * 8 > kMaxMetadataBytes) {
    return Error{.code = Code::kMessageTooLarge,
                 .message = "The message has " + std::to_string(kinds_.size()) + " nodes and " +
                            std::to_string(text_.size()) +
                            " bytes of short strings; a frame can describe 536,870,911 of each and 4 GiB in all."};
  }
  metadata_bytes_ = words * 8;
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

Status FrameBuilder::write_metadata(std::byte* out) noexcept {
  const std::size_t words = metadata_bytes_ / 8;
  if (words > scratch_words_) {
    const std::size_t wanted = words < 512 ? 512 : words + words / 2;
    scratch_.reset(static_cast<std::uint64_t*>(std::calloc(wanted, 8)));
    scratch_words_ = scratch_ == nullptr ? 0 : wanted;
    if (scratch_ == nullptr) {
      return Error{.code = Code::kOutOfSharedMemory, .message = "There is no memory left to describe the message."};
    }
  }
  try {
    // It zeroes what it used when it goes, so the scratch is always clean.
    ::capnp::MallocMessageBuilder message(
        ::kj::ArrayPtr<::capnp::word>(reinterpret_cast<::capnp::word*>(scratch_.get()), words));
    fill_metadata(&message);
    const auto segments = message.getSegmentsForOutput();
    if (segments.size() != 1 || segments[0].size() != words) {
      return Error{.code = Code::kInvalid, .message = "The metadata did not come out at the size computed for it."};
    }
    const FrameHeader header{.magic = kFrameMagic,
                             .metadata_bytes = static_cast<std::uint32_t>(metadata_bytes_),
                             .size_version_flags = total_bytes_ | std::uint64_t{kFrameVersion} << 48};
    std::memcpy(out, &header, sizeof(header));
    std::memcpy(out + sizeof(header), segments[0].begin(), metadata_bytes_);
  } catch (const ::kj::Exception& exception) {
    // The scratch may be left dirty.
    scratch_.reset();
    scratch_words_ = 0;
    return Error{.code = Code::kInvalid, .message = exception.getDescription().cStr()};
  } catch (const std::exception& exception) {
    return Error{.code = Code::kOutOfSharedMemory, .message = exception.what()};
  }
  if (scratch_words_ * 8 > kKeptScratch) [[unlikely]] {
    scratch_.reset();
    scratch_words_ = 0;
  }
  return success();
}

void FrameBuilder::fill_metadata(void* message) const {
  auto frame = static_cast<::capnp::MallocMessageBuilder*>(message)->initRoot<schema::Frame>();
  const auto count = [](const auto& column) { return static_cast<unsigned>(column.size()); };
  if (!kinds_.empty()) fill(frame.initKinds(count(kinds_)), kinds_);
  if (!lengths_.empty()) fill(frame.initLengths(count(lengths_)), lengths_);
  if (!ints_.empty()) fill(frame.initInts(count(ints_)), ints_);
  if (!floats_.empty()) fill(frame.initFloats(count(floats_)), floats_);
  if (!text_.empty()) fill(frame.initText(count(text_)), text_);
  if (!descriptors_.empty()) {
    auto arrays = frame.initArrays(count(descriptors_));
    for (unsigned i = 0; i < arrays.size(); ++i) {
      auto array = arrays[i];
      array.setDtype(static_cast<std::uint8_t>(descriptors_[i]));
      array.setFlags(static_cast<std::uint8_t>(descriptors_[i] >> 8));
      array.setNdim(static_cast<std::uint8_t>(descriptors_[i] >> 16));
      array.setBuffer(static_cast<std::uint32_t>(descriptors_[i] >> 32));
    }
  }
  if (!layout_.empty()) {
    auto buffers = frame.initBuffers(count(layout_));
    for (unsigned i = 0; i < buffers.size(); ++i) buffers.set(i, layout_[i].bytes);
  }
  if (!views_.empty()) fill(frame.initViews(count(views_)), views_);
  if (!externals_.empty()) {
    auto externals = frame.initExternals(count(externals_));
    for (unsigned i = 0; i < externals.size(); ++i) {
      externals[i].setReference(externals_[i].reference);
      externals[i].setOffset(externals_[i].offset);
      externals[i].setBytes(externals_[i].bytes);
    }
  }
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

Status FrameBuilder::write(std::byte* out) noexcept {
  Status status = write_metadata(out);
  if (status.ok()) copy_buffers(out);
  return status;
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
