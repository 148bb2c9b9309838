// A helper for files that make system calls.
#pragma once

#include <errno.h>

namespace shmtree::platform {

// Repeats a call as long as signals interrupt it, and returns its result.
template <class Call>
auto retry(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

}  // namespace shmtree::platform
