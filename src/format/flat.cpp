#include "format/flat.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "format/schema_columns.h"
#include "format/segment_writer.h"
#include "shmtree/kind.h"

namespace shmtree::format {

namespace {

constexpr std::size_t kColumns = schema::Frame::kPointers;
constexpr std::size_t kKindsAt = sizeof(FrameHeader) + 8 * (1 + kColumns), kLengthsAt = kKindsAt + 8;
constexpr std::size_t kIntsAt = kLengthsAt + 8;
constexpr bool is_escaped(std::uint64_t count) noexcept {
  return count >= kLengthEscape;
}
// Where the text begins, after the kind, the length, and the number that the length stands for.
constexpr std::uint64_t text_at(std::uint64_t count) noexcept {
  return kIntsAt + (is_escaped(count) ? 8 : 0);
}
// The same with a descriptor and the size of a buffer.
constexpr std::uint64_t metadata_end(std::uint64_t count) noexcept {
  return text_at(count) + 16 + 8;
}
static_assert(align_buffer(metadata_end(0)) == kFlatBuffer && align_buffer(metadata_end(UINT32_MAX)) == kFlatBuffer);

void write_kind(SegmentWriter& segment, Kind kind, std::uint64_t count) noexcept {
  const auto length = static_cast<std::uint8_t>(std::min<std::uint64_t>(count, kLengthEscape));
  segment.copy<schema::kinds>(std::span(&kind, 1));
  segment.copy<schema::lengths>(std::span(&length, 1));
  if (is_escaped(count)) segment.copy<schema::ints>(std::span(&count, 1));
}

// What a frame begins with, up to its run: private.
struct Prefix {
  explicit Prefix(std::span<const std::byte> frame) noexcept : known(std::min(frame.size(), sizeof(bytes))) {
    std::memcpy(bytes, frame.data(), known);
  }
  std::uint64_t word(std::size_t at) const noexcept {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes + at, 8);
    return value;
  }
  bool begins_with(const std::byte* expected, std::uint64_t count) const noexcept {
    return count <= known && std::memcmp(bytes, expected, count) == 0;
  }

  std::byte bytes[kFlatBuffer];
  std::size_t known;
};

}  // namespace

std::uint64_t flat_text_bytes(std::uint64_t count) noexcept {
  return text_at(count) + (count + 7) / 8 * 8;
}

void write_flat_text(std::byte* out, std::span<const std::byte> run) noexcept {
  const std::uint64_t total = flat_text_bytes(run.size());
  write_header(out, total - sizeof(FrameHeader), total);
  SegmentWriter segment(out + sizeof(FrameHeader), kColumns);
  write_kind(segment, Kind::kBytes, run.size());
  segment.copy<schema::text>(run);
}

void write_flat_prefix(std::byte* out, std::uint64_t count) noexcept {
  write_header(out, metadata_end(count) - sizeof(FrameHeader), flat_buffer_bytes(count));
  SegmentWriter segment(out + sizeof(FrameHeader), kColumns);
  write_kind(segment, Kind::kLongBytes, count);
  static constexpr std::uint64_t kDescriptor =
      static_cast<std::uint64_t>(DType::kUInt8) | std::uint64_t{kReadOnly} << 8 | std::uint64_t{1} << 16;
  segment.copy<schema::arrays>(std::span(&kDescriptor, 1));
  segment.copy<schema::buffers>(std::span(&count, 1));
  std::memset(out + metadata_end(count), 0, kFlatBuffer - metadata_end(count));
}

std::optional<std::span<const std::byte>> flat_run(std::span<const std::byte> frame) noexcept {
  if (frame.size() < kIntsAt) return std::nullopt;
  const Prefix prefix(frame);
  const std::uint64_t total = prefix.word(8) & kMaxFrameBytes;
  if (total > frame.size()) return std::nullopt;
  // As it would be, if it were one.
  alignas(8) std::byte expected[kFlatBuffer];
  const auto kind = static_cast<Kind>(prefix.bytes[kKindsAt]);
  if (kind == Kind::kLongBytes && total > kFlatBuffer) {
    const std::uint64_t count = total - kFlatBuffer;
    write_flat_prefix(expected, count);
    if (!prefix.begins_with(expected, metadata_end(count))) return std::nullopt;
    return frame.subspan(kFlatBuffer, static_cast<std::size_t>(count));
  }
  if (kind != Kind::kBytes) return std::nullopt;
  std::uint64_t count = static_cast<std::uint8_t>(prefix.bytes[kLengthsAt]);
  if (is_escaped(count)) count = prefix.known < kIntsAt + 8 ? 0 : prefix.word(kIntsAt);
  if (count > kMaxFrameBytes || flat_text_bytes(count) != total) return std::nullopt;
  write_header(expected, total - sizeof(FrameHeader), total);
  SegmentWriter segment(expected + sizeof(FrameHeader), kColumns);
  write_kind(segment, Kind::kBytes, count);
  segment.point_to_bytes<schema::text>(count);
  if (!prefix.begins_with(expected, text_at(count))) return std::nullopt;
  return frame.subspan(static_cast<std::size_t>(text_at(count)), static_cast<std::size_t>(count));
}

}  // namespace shmtree::format
