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

// Appends a killed process to the list that ends the error's message. `pids` gets only pids above 0, since kill()
// signals a whole group for the others. They stand for a forked process that was killed before it stored its pid.
inline void append_killed(Error& error, int pid) {
  error.message.append(error.message.ends_with(':') ? " " : ", ");
  if (pid > 0) {
    error.message.append(std::to_string(pid));
    error.pids.push_back(pid);
  } else {
    error.message.append("a process that was killed while it started");
  }
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
