#include "platform/text.h"

#include <cstdio>

namespace shmtree::platform {

std::size_t code_point_bytes(std::string_view text) noexcept {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto follow = [&](std::size_t count, unsigned char low, unsigned char high) -> std::size_t {
    if (text.size() <= count || byte(1) < low || byte(1) > high) return 0;
    for (std::size_t i = 2; i <= count; ++i) {
      if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
    }
    return count + 1;
  };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xc2) return 0;  // a continuation byte, or an overlong encoding
  if (first < 0xe0) return follow(1, 0x80, 0xbf);
  if (first < 0xf0) return follow(2, first == 0xe0 ? 0xa0 : 0x80, 0xbf);
  if (first < 0xf5) return follow(3, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf);
  return 0;
}

std::size_t utf8_prefix(std::string_view text) noexcept {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t bytes = code_point_bytes(text.substr(at));
    if (bytes == 0) break;
    at += bytes;
  }
  return at;
}

namespace {

// Decodes a code point that code_point_bytes() has found.
std::uint32_t code_point_of(std::string_view bytes) noexcept {
  const auto byte = [bytes](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])); };
  if (bytes.size() == 1) return byte(0);
  std::uint32_t point = byte(0) & (0x3fu >> (bytes.size() - 1));
  for (std::size_t i = 1; i < bytes.size(); ++i) point = point << 6 | (byte(i) & 0x3f);
  return point;
}

constexpr bool controls_a_terminal(std::uint32_t point) noexcept {
  const auto within = [point](std::uint32_t first, std::uint32_t last) { return point >= first && point <= last; };
  return point < 0x20 || within(0x7f, 0x9f) || point == 0x061c || within(0x200e, 0x200f) || within(0x2028, 0x202e) ||
         within(0x2066, 0x2069) || point == 0xfeff;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t bytes = code_point_bytes(text);
    const std::string_view next = text.substr(0, bytes == 0 ? 1 : bytes);
    const std::uint32_t point = bytes == 0 ? std::uint32_t{0xffff} : code_point_of(next);
    if (controls_a_terminal(point)) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, point < 0x100 ? "\\x%02x" : "\\u%04x", static_cast<unsigned>(point));
      out += escaped;
    } else {
      out += next;
    }
    text.remove_prefix(next.size());
  }
  return out;
}

bool is_strict_utf8(std::string_view text) noexcept {
  constexpr char kFirst = '\xed', kMinSecond = '\xa0';  // bytes of a surrogate
  if (!is_text(text)) return false;
  for (std::size_t at = text.find(kFirst); at != text.npos; at = text.find(kFirst, at + 1)) {
    if (static_cast<unsigned char>(text[at + 1]) >= static_cast<unsigned char>(kMinSecond)) return false;
  }
  return true;
}

}  // namespace shmtree::platform
