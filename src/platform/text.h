// Checks if bytes are UTF-8 text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace shmtree::platform {

// Returns the bytes of the code point at the beginning of `text`, which must not be empty; 0 if there is none. Follows
// RFC 3629, section 4, but accepts surrogates.
std::size_t code_point_bytes(std::string_view text) noexcept;

// Returns how many bytes at the beginning of `text` are UTF-8 as Python encodes a str: a lone surrogate is three bytes,
// like any other code point. Equals text.size() if all of it is text.
std::size_t utf8_prefix(std::string_view text) noexcept;

// Answers the question for most texts in a few instructions.
inline bool is_ascii(std::string_view text) noexcept {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  const auto word_at = [&text](std::size_t at) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, sizeof(word));
    return word;
  };
  std::uint64_t bits = 0;
  if (text.size() < sizeof(bits)) {
    for (const char each : text) bits |= static_cast<unsigned char>(each);
    return (bits & kHighBits) == 0;
  }
  for (std::size_t at = 0; at + sizeof(bits) <= text.size(); at += sizeof(bits)) bits |= word_at(at);
  return ((bits | word_at(text.size() - sizeof(bits))) & kHighBits) == 0;
}

inline bool is_text(std::string_view text) noexcept {
  return is_ascii(text) || utf8_prefix(text) == text.size();
}

// Makes a text safe for a terminal. Control characters (C0, DEL, C1), line separators and characters that change the
// direction of text are escaped as by Python's ascii(), `\x1b` or `\u202e`. Bytes that are not UTF-8 stay as they are.
std::string printable(std::string_view text);

// True if all of it is strict UTF-8, which has no surrogates.
bool is_strict_utf8(std::string_view text) noexcept;

}  // namespace shmtree::platform
