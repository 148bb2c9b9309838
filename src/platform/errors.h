// Errors that every layer makes.
#pragma once

#include <string>
#include <utility>

#include "shmtree/result.h"

namespace shmtree {

// An argument out of range. `message` is a complete sentence that names the numbers.
inline Error invalid(std::string message) {
  return Error{.code = Code::kInvalid, .message = std::move(message)};
}

}  // namespace shmtree
