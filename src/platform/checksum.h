// CRC-32C (Castagnoli's polynomial, as in iSCSI and ext4): finds every change of up to 32 bits next to each other, and
// of others all but one in 2^32.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shmtree::platform {

// Of bytes that come after those with the checksum `before`; 0 where none came. With the processor's instruction 20
// GB/s, without it 2.
std::uint32_t crc32c(std::uint32_t before, const void* data, std::size_t bytes) noexcept;
// The same without the instruction, for tests.
std::uint32_t crc32c_by_table(std::uint32_t before, const void* data, std::size_t bytes) noexcept;

}  // namespace shmtree::platform
