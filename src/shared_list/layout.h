// A shared list is one run of bytes in a sealed memory file or a file on disk, see docs/internals/list-layout.md. The
// writer is python/shmtree/_ipc/list_writer.py.
//
//     header   frame...   padding   index: count + 1 offsets
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace shmtree::shared_list {

static_assert(std::endian::native == std::endian::little, "numbers are read from the file without conversion");

inline constexpr char kMagic[8] = {'s', 'm', 't', '-', 'l', 'i', 's', 't'};
inline constexpr std::uint32_t kVersion = 1;

struct ListHeader {
  std::byte magic[8];          // "smt-list"
  std::uint32_t version;       // Version of the format: 1. Readers refuse all others
  std::uint32_t header_bytes;  // 128
  std::uint64_t count;         // Number of items
  std::uint64_t index_offset;  // Offset of the index: a multiple of 64
  std::uint64_t bytes;         // Size of everything: index_offset + 8 * (count + 1)
  std::byte identity[16];      // Random number that references to items contain
  std::byte zeros[72];
};
static_assert(sizeof(ListHeader) == 128);
static_assert(offsetof(ListHeader, identity) == 40);

inline constexpr std::uint64_t kFrameAlignment = 8;  // At least; frames with buffers have 64
inline constexpr std::uint64_t kIndexAlignment = 64;
inline constexpr std::uint64_t kFrameHeaderBytes = 16;
inline constexpr std::uint64_t kFrameSizeOffset = 8;  // Six bytes, in the header of a frame
inline constexpr std::uint64_t kFrameSizeMask = (std::uint64_t{1} << 48) - 1;

}  // namespace shmtree::shared_list
