#include "memory/layout.h"

#include <algorithm>

namespace shmtree::memory {

Geometry::Geometry(std::uint64_t max_bytes, std::uint64_t page_bytes) noexcept
    : page_bytes_(page_bytes), max_class_(std::min(class_for(max_bytes), kMaxClass)) {
  std::uint64_t at = round_up(wake_table_offset(kMaxParticipants), kRegionAlignment);
  for (unsigned k = kMinClass; k <= max_class_; ++k) {
    const std::uint64_t size = std::uint64_t{1} << k;
    count_[k - kMinClass] = round_up(2 * max_bytes, size) >> k;
    table_[k - kMinClass] = at;
    at += round_up(count(k) * sizeof(BlockEntry), kRegionAlignment);
  }
  for (unsigned k = kMinClass; k <= max_class_; ++k) {
    data_[k - kMinClass] = at;
    at += round_up(count(k) << k, kRegionAlignment);
  }
  file_bytes_ = at;
}

}  // namespace shmtree::memory
