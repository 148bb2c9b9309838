// Form of time zone keys in messages. Encoder and decoder apply the same rule.
#pragma once

#include <cstddef>
#include <string_view>

namespace shmtree::python {

// True if `key` has the form of a zone name: one to four words, separated by slashes. A decoder rejects other keys, so
// a message cannot make it search arbitrary paths.
inline bool is_zone_key(std::string_view key) noexcept {
  constexpr std::size_t kLongest = 64, kMaxWords = 4;
  if (key.empty() || key.size() > kLongest || key.front() == '/' || key.back() == '/') return false;
  std::size_t words = 1;
  for (std::size_t i = 0; i < key.size(); ++i) {
    const char c = key[i];
    if (c == '/') {
      if (key[i - 1] == '/' || ++words > kMaxWords) return false;
    } else if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '+' ||
                 c == '-')) {
      return false;
    }
  }
  return true;
}

}  // namespace shmtree::python
