// For the files that make system calls.
#pragma once

#include <errno.h>

namespace shmtree::platform {

// The result of a call that is made again as long as signals interrupt it.
template <class Call>
auto retry(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

}  // namespace shmtree::platform
