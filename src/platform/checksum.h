// CRC-32C (Castagnoli's polynomial, as in iSCSI and ext4). Detects every change within 32 adjacent bits, and all but
// one in 2^32 of other changes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shmtree::platform {

// Returns the checksum of `bytes` that follow bytes with the checksum `before`; 0 if there were none. 20 GB/s with the
// processor's instruction, 2 GB/s without.
std::uint32_t crc32c(std::uint32_t before, const void* data, std::size_t bytes) noexcept;
// Computes the same without the instruction, for tests.
std::uint32_t crc32c_by_table(std::uint32_t before, const void* data, std::size_t bytes) noexcept;

}  // namespace shmtree::platform
