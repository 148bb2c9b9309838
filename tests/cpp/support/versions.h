// Errors for objects of another version.
#pragma once

#include <cstdint>
#include <string>

#include "shmtree/base/result.h"

namespace shmtree::test {

// Returns true if `error` is kIncompatible, and its text has both version numbers.
inline bool names_versions(const Error& error, std::uint64_t found, std::uint64_t own) {
  const std::string text = "version " + std::to_string(found) + "; this library reads version " + std::to_string(own);
  return error.code == Code::kIncompatible && error.message.find(text) != std::string::npos;
}

}  // namespace shmtree::test
