// Errors that every layer returns.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "shmtree/base/result.h"

namespace shmtree {

// Returns the error for an argument out of range. `message` is a complete sentence with the numbers.
inline Error invalid(std::string message) {
  return Error{.code = Code::kInvalid, .message = std::move(message)};
}

// Collects the differences between the options of an existing object and the requested ones.
class OptionDifferences {
 public:
  void compare(const char* option, const std::string& is, const std::string& asked) {
    if (is == asked) return;
    text_.append(text_.empty() ? "" : ", ").append(option).append(" ").append(is).append(", not ").append(asked);
  }
  void compare(const char* option, std::uint64_t is, std::uint64_t asked) {
    compare(option, std::to_string(is), std::to_string(asked));
  }
  void compare_flags(const char* option, bool is, bool asked) {
    compare(option, std::string(is ? "true" : "false"), std::string(asked ? "true" : "false"));
  }
  // Returns kInvalid with both values of each option that differs, or success. `what` is, for example, "a channel".
  Status of(const std::string& what) const {
    if (text_.empty()) return Unit{};
    return Error{.code = Code::kInvalid, .message = "it belongs to " + what + " with other options: " + text_};
  }

 private:
  std::string text_{};
};

}  // namespace shmtree
