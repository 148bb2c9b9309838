// The error for data of another format version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "shmtree/base/result.h"

namespace shmtree::platform {

// Returns kIncompatible with both version numbers. `what` is the text before the first number: "the channel has
// version".
inline Error other_version(std::string what, std::uint64_t found, std::uint64_t own) {
  return Error{
      .code = Code::kIncompatible,
      .message = std::move(what) + " " + std::to_string(found) + "; this library reads version " + std::to_string(own)};
}

// Returns the version digit at the end of `magic`, or nothing if there is no digit or the rest differs from `own`.
template <std::size_t N>
std::optional<std::uint64_t> version_of(const char (&magic)[N], const char (&own)[N]) noexcept {
  const char digit = magic[N - 1];
  if (std::memcmp(magic, own, N - 1) != 0 || digit < '0' || digit > '9') return std::nullopt;
  return static_cast<std::uint64_t>(digit - '0');
}

}  // namespace shmtree::platform
