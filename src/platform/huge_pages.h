// The size from which heap memory is worth huge pages.
#pragma once

#include <cstddef>

namespace shmtree::platform {

// From this size on, page faults in new heap memory cost more than the copy into it. For 100 MB they took 100 ms in
// pages of 4 KiB and 35 ms in huge ones. NumPy requests huge pages from the same size on.
inline constexpr std::size_t kHugeBytes = std::size_t{4} << 20;

}  // namespace shmtree::platform
