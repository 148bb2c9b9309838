// Checks how much stack the calling thread has left.
#pragma once

#include <cstddef>

namespace shmtree::platform {

// True if the calling thread may use `bytes` more of its stack. Always true on a stack that the system does not know,
// such as that of a coroutine or a signal handler.
bool has_stack(std::size_t bytes) noexcept;

}  // namespace shmtree::platform
