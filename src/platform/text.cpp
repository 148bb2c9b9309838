#include "platform/text.h"

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
  if (first < 0xc2) return 0;  // goes on, or is too long for what it says
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

bool is_strict_utf8(std::string_view text) noexcept {
  constexpr char kFirst = '\xed', kLeastSecond = '\xa0';  // of a surrogate
  if (!is_text(text)) return false;
  for (std::size_t at = text.find(kFirst); at != text.npos; at = text.find(kFirst, at + 1)) {
    if (static_cast<unsigned char>(text[at + 1]) >= static_cast<unsigned char>(kLeastSecond)) return false;
  }
  return true;
}

}  // namespace shmtree::platform
