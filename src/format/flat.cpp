#include "format/flat.h"

#include <cstring>

namespace shmtree::format {

void write_flat_short(std::byte* out, std::span<const std::byte> run) noexcept {
  write_header(out, 0, flat_short_bytes(run.size()), kFlat);
  if (!run.empty()) std::memcpy(out + sizeof(FrameHeader), run.data(), run.size());
}

void write_flat_prefix(std::byte* out, std::uint64_t count) noexcept {
  write_header(out, kFlatPadding, flat_long_bytes(count), kFlat);
  std::memset(out + sizeof(FrameHeader), 0, kFlatPadding);
}

std::optional<std::span<const std::byte>> flat_run(std::span<const std::byte> frame) noexcept {
  if (frame.size() < sizeof(FrameHeader)) return std::nullopt;
  const FrameHeader header = read_header(frame.data());
  const std::uint64_t total = header.size_version_flags & kMaxFrameBytes, padding = header.metadata_bytes;
  if (header.magic != kFrameMagic || header.size_version_flags >> 48 != (kFrameVersion | kFlat << 8)) {
    return std::nullopt;
  }
  if (padding != 0 && padding != kFlatPadding) return std::nullopt;
  if (total > frame.size() || total < sizeof(FrameHeader) + padding) return std::nullopt;
  return frame.first(total).subspan(sizeof(FrameHeader) + padding);
}

}  // namespace shmtree::format
