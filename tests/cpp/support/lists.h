// Shared lists made by hand, independent of the reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace shmtree::test {

inline constexpr std::size_t kListHeaderBytes = 128;

template <class T>
void put_number(std::string& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

// Returns a list of these frames, each at a multiple of 64.
inline std::string list_of(const std::vector<std::string>& frames) {
  std::string bytes(kListHeaderBytes, '\0');
  std::vector<std::uint64_t> offsets;
  for (const std::string& frame : frames) {
    bytes.resize((bytes.size() + 63) / 64 * 64);
    offsets.push_back(bytes.size());
    bytes += frame;
  }
  offsets.push_back(bytes.size());
  bytes.resize((bytes.size() + 63) / 64 * 64);
  const std::uint64_t index = bytes.size();
  bytes.append(reinterpret_cast<const char*>(offsets.data()), 8 * offsets.size());
  std::memcpy(bytes.data(), "smt-list", 8);
  put_number(bytes, 8, std::uint32_t{1});
  put_number(bytes, 12, static_cast<std::uint32_t>(kListHeaderBytes));
  put_number(bytes, 16, static_cast<std::uint64_t>(frames.size()));
  put_number(bytes, 24, index);
  put_number(bytes, 32, static_cast<std::uint64_t>(bytes.size()));
  return bytes;
}

}  // namespace shmtree::test
