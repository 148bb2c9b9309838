#include "format/frame_builder.h"

#include <bit>
#include <cstring>

namespace shmtree::format {

namespace {

constexpr std::size_t kFirstSlots = 64;
constexpr std::size_t kLookBack = 64;

// Not a good hash, but a quick one that tells keys of one program apart: length, first and last bytes.
std::size_t hash_name(const char* text, std::size_t bytes) noexcept {
  std::uint64_t head = 0;
  std::uint64_t tail = 0;
  if (bytes >= 8) {
    std::memcpy(&head, text, 8);
    std::memcpy(&tail, text + bytes - 8, 8);
  } else if (bytes >= 4) {
    std::memcpy(&head, text, 4);
    std::memcpy(&tail, text + bytes - 4, 4);
  } else if (bytes != 0) {
    head = static_cast<std::uint8_t>(text[0]);
    tail = static_cast<std::uint64_t>(static_cast<std::uint8_t>(text[bytes / 2])) << 8 |
           static_cast<std::uint8_t>(text[bytes - 1]);
  }
  return ((head ^ std::rotl(tail, 29) ^ bytes) * 0x9e3779b97f4a7c15) >> 56;
}

std::size_t hash_range(const std::byte* begin, std::uint64_t bytes) noexcept {
  // The highest bits are the best ones: they come first.
  return std::rotr((std::bit_cast<std::uintptr_t>(begin) + bytes) * 0x9e3779b97f4a7c15, 44);
}

}  // namespace

void FrameBuilder::clear() noexcept {
  with_columns(*this, [](auto&... column) { (column.clear(), ...); });
  if (!sources_.empty()) {
    sources_.clear();
    rebuild_index(kFirstSlots);
  }
  depth_ = 0;
  any_share_ = false;
}

std::uint32_t FrameBuilder::add_name(std::string_view name) noexcept {
  std::uint32_t& slot = name_slots_[hash_name(name.data(), name.size())];
  if (slot < names_.size() && !text_.failed()) {
    const NameRef known = names_[slot];
    if (known.bytes == name.size() && std::memcmp(text_.data() + known.offset, name.data(), name.size()) == 0) {
      add_known_name(slot);
      return slot;
    }
  }
  slot = static_cast<std::uint32_t>(names_.size());
  if (name.size() < kLengthEscape) [[likely]] {
    if (std::uint8_t* lengths = lengths_.extend(2)) {
      lengths[0] = 0;
      lengths[1] = static_cast<std::uint8_t>(name.size());
    }
  } else {
    add_length(0);
    add_length(name.size());
  }
  names_.push({static_cast<std::uint32_t>(text_.size()), static_cast<std::uint32_t>(name.size())});
  text_.append(name.data(), name.size());
  return slot;
}

void FrameBuilder::add_array(const ArraySource& source) noexcept {
  std::uint64_t item = item_bytes(source.dtype);
  if (source.dtype == DType::kOther) {
    item = source.item_bytes;
    add_name(source.description);
    add_length(item);
  }
  std::uint64_t bytes = item;
  for (std::size_t i = 0; i < source.ndim; ++i) {
    const auto count = static_cast<std::uint64_t>(source.shape[i]);
    add_length(count);
    bytes *= count;
  }
  ArrayRecord record{.dtype = static_cast<std::uint8_t>(source.dtype),
                     .flags = static_cast<std::uint8_t>(source.read_only ? kReadOnly : 0),
                     .ndim = source.ndim,
                     .source = 0,
                     .offset = 0,
                     .side = kNoIndex};
  if (source.order == Order::kFortran && source.ndim > 1) record.flags |= kFortran;
  if (bytes == 0) {
    record.flags |= kNoBuffer;
  } else if (source.external != kNoIndex) {
    record.flags |= kExternal;
    record.source = source.external;
    record.offset = source.external_offset;
    if (source.order == Order::kStrided) record.side = side_of(source);
  } else if (source.order == Order::kStrided) {
    add_source_array(source, item, record);
  } else {
    record.source = source_of({.begin = static_cast<const std::byte*>(source.data),
                               .bytes = bytes,
                               .element_bytes = bytes,
                               .item_bytes = item,
                               .side = kNoIndex,
                               .may_share = source.may_share});
  }
  arrays_.push(record);
}

// A strided array becomes one of three things: a plain range whose elements are permuted (a transposed array), a range
// with gaps that others may share, or elements that are gathered in any case.
void FrameBuilder::add_source_array(const ArraySource& source, std::uint64_t item, ArrayRecord& record) noexcept {
  std::int64_t low = 0;
  std::int64_t high = static_cast<std::int64_t>(item);
  std::uint64_t element_bytes = item;
  for (std::size_t i = 0; i < source.ndim; ++i) {
    const std::int64_t reach = (source.shape[i] - 1) * source.strides[i];
    (reach < 0 ? low : high) += reach;
    element_bytes *= static_cast<std::uint64_t>(source.shape[i]);
  }
  const auto bytes = static_cast<std::uint64_t>(high - low);
  record.side = side_of(source);
  record.offset = -low;
  record.source = source_of({.begin = static_cast<const std::byte*>(source.data) + low,
                             .bytes = bytes,
                             .element_bytes = element_bytes,
                             .item_bytes = item,
                             .first = -low,
                             .side = bytes == element_bytes ? kNoIndex : record.side,
                             .ndim = source.ndim,
                             .may_share = source.may_share,
                             .alone = element_bytes > bytes || (bytes > element_bytes && !source.may_share)});
}

std::uint32_t FrameBuilder::side_of(const ArraySource& source) noexcept {
  const auto side = static_cast<std::uint32_t>(sides_.size());
  sides_.append(source.shape, source.ndim);
  sides_.append(source.strides, source.ndim);
  return side;
}

void FrameBuilder::add_blob(const void* bytes, std::size_t count, bool read_only) noexcept {
  const auto shape = static_cast<std::int64_t>(count);
  add_array({.data = bytes, .shape = &shape, .ndim = 1, .dtype = DType::kUInt8, .read_only = read_only});
}

std::uint32_t FrameBuilder::add_external(const External& range) noexcept {
  const std::size_t count = externals_.size();
  for (std::size_t i = count; i > 0 && count - i < kLookBack; --i) {
    const External& known = externals_[i - 1];
    if (known.reference == range.reference && known.offset == range.offset && known.bytes == range.bytes)
      return static_cast<std::uint32_t>(i - 1);
  }
  // Member by member, so that the padding in the frame is zero whatever the caller's had in it.
  if (External* added = externals_.extend(1)) {
    std::memset(static_cast<void*>(added), 0, sizeof(External));
    added->reference = range.reference;
    added->offset = range.offset;
    added->bytes = range.bytes;
  }
  return static_cast<std::uint32_t>(count);
}

bool FrameBuilder::same_side(const Source& a, const Source& b) const noexcept {
  if (a.side == kNoIndex || b.side == kNoIndex) return a.side == b.side;
  return a.ndim == b.ndim && a.item_bytes == b.item_bytes && a.first == b.first &&
         std::memcmp(&sides_[a.side], &sides_[b.side], 2 * std::size_t{a.ndim} * sizeof(std::int64_t)) == 0;
}

// The source for a range: the one that is there already, or a new one.
std::uint32_t FrameBuilder::source_of(const Source& wanted) noexcept {
  const std::size_t count = sources_.size();
  if (2 * (count + 1) > source_index_.size()) rebuild_index(count < 16 ? kFirstSlots : 4 * count);
  const std::size_t mask = source_index_.size() - 1;
  any_share_ |= wanted.may_share;
  if (source_index_.empty() || sources_.failed() || sides_.failed()) [[unlikely]]
    return 0;
  std::size_t slot = hash_range(wanted.begin, wanted.bytes) & mask;
  for (; source_index_[slot] != 0; slot = (slot + 1) & mask) {
    Source& known = sources_[source_index_[slot] - 1];
    if (known.begin == wanted.begin && known.bytes == wanted.bytes && same_side(known, wanted)) {
      known.may_share |= wanted.may_share;
      known.alone &= wanted.alone;
      return source_index_[slot] - 1;
    }
  }
  sources_.push(wanted);
  if (sources_.size() > count) source_index_[slot] = static_cast<std::uint32_t>(count + 1);
  return static_cast<std::uint32_t>(count);
}

// Empty when memory ran out, which any_failed() reports.
void FrameBuilder::rebuild_index(std::size_t slots) noexcept {
  slots = std::bit_ceil(slots);
  if (source_index_.size() != slots) {
    source_index_.clear();
    if (source_index_.extend(slots) == nullptr) return;
  }
  std::memset(source_index_.data(), 0, source_index_.bytes());
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    std::size_t slot = hash_range(sources_[i].begin, sources_[i].bytes) & (slots - 1);
    while (source_index_[slot] != 0) slot = (slot + 1) & (slots - 1);
    source_index_[slot] = static_cast<std::uint32_t>(i + 1);
  }
}

FrameBuilder::Mark FrameBuilder::mark() const noexcept {
  return {with_columns(*this, [](auto&... column) { return std::array{column.size()...}; }), sources_.size(), depth_};
}

void FrameBuilder::rewind(const Mark& mark) noexcept {
  // After a failure columns may be shorter than the mark; the message is lost anyway.
  if (any_failed()) return;
  with_columns(*this, [size = mark.sizes.begin()](auto&... column) mutable { (column.truncate(*size++), ...); });
  if (sources_.size() != mark.sources) {
    sources_.truncate(mark.sources);
    rebuild_index(source_index_.size());
  }
  depth_ = mark.depth;
}

bool FrameBuilder::any_failed() const noexcept {
  // No branch for each: nearly always none has.
  const int failed = with_columns(*this, [](auto&... column) { return (int{column.failed()} | ...); });
  return (failed | sources_.failed() | source_index_.failed()) != 0;
}

}  // namespace shmtree::format
