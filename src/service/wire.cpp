#include "service/wire.h"

#include <string_view>

#include "format/frame_reader.h"
#include "platform/clock.h"

namespace shmtree::service {

namespace {

using format::FrameReader;

// Reads up to the first item of the header, which has `count` items. Returns false for any other frame.
bool begin_header(FrameReader& in, std::span<const std::byte> frame, std::uint64_t count) {
  return in.load(frame).ok() && in.next_kind() == Kind::kTuple && in.next_count() == 2 &&
         in.next_kind() == Kind::kTuple && in.next_count() == count;
}

std::optional<std::string> next_bytes(FrameReader& in) {
  const Kind kind = in.next_kind();
  if (kind == Kind::kBytes) return std::string(in.next_string());
  if (kind != Kind::kLongBytes) return std::nullopt;
  const auto blob = in.next_blob();
  return std::string(reinterpret_cast<const char*>(blob.data()), blob.size());
}

}  // namespace

std::optional<RequestHeader> request_header(std::span<const std::byte> frame) {
  FrameReader in;
  if (!begin_header(in, frame, 3)) return std::nullopt;
  auto handle = next_bytes(in);
  if (!handle || in.next_kind() != Kind::kInt) return std::nullopt;
  RequestHeader header{std::move(*handle), in.next_int()};
  const Kind kind = in.next_kind();
  if (kind == Kind::kFloat) header.deadline = in.next_float();
  if (in.failed() || (kind != Kind::kFloat && kind != Kind::kNone)) return std::nullopt;
  return header;
}

std::optional<std::int64_t> reply_number(std::span<const std::byte> frame) {
  FrameReader in;
  if (!begin_header(in, frame, 2) || in.next_kind() != Kind::kInt) return std::nullopt;
  const std::int64_t number = in.next_int();
  return in.failed() ? std::nullopt : std::optional(number);
}

bool has_expired(const std::optional<double>& deadline) noexcept {
  return deadline && static_cast<double>(platform::monotonic_ns()) > *deadline * 1e9;
}

}  // namespace shmtree::service
