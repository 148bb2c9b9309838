/// @file
/// The file descriptors that shmtree keeps open, for programs that close all others.
///
///     const std::vector<int> kept = shmtree::descriptors();
///     for (const int fd : open_files_of_this_process()) {
///       if (!std::ranges::binary_search(kept, fd)) close(fd);
///     }
#pragma once

#include <vector>

namespace shmtree {

/// Returns the descriptors that shmtree keeps open in this process, sorted. Objects that you make or open later add
/// more. If the program closes one of them, calls that need it return kOs with `os_errno` EBADF. Any thread may call
/// this. Throws std::bad_alloc.
std::vector<int> descriptors();

}  // namespace shmtree
