// Implements shmtree::descriptors().
#include "shmtree/descriptors.h"

#include "platform/checked_fd.h"

namespace shmtree {

std::vector<int> descriptors() {
  return platform::kept_descriptors();
}

}  // namespace shmtree
