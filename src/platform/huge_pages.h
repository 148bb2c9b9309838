// When memory of the heap is worth huge pages.
#pragma once

#include <cstddef>

namespace shmtree::platform {

// From here on the pages of a new piece of heap cost more than the copy: 100 MB took 100 ms in pages of 4 KiB and 35 in
// huge ones. NumPy asks for them at the same size.
inline constexpr std::size_t kHugeBytes = std::size_t{4} << 20;

}  // namespace shmtree::platform
