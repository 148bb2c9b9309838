// The fixed part of a frame. docs/internals/frame.md describes the whole frame, byte by byte.
//
//   offset 0   4  magic "SHMT"
//          4   4  bytes of the metadata, a multiple of 8
//          8   6  bytes of the whole frame
//         14   1  version
//         15   1  flags: 0, or kFlat
//         16      the metadata: one Cap'n Proto segment, without a segment table
//   Then the raw buffers, each at the next multiple of 64 from the frame's start, the gaps zeroed.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace shmtree::format {

static_assert(std::endian::native == std::endian::little, "frames are little-endian, and so is every field in them");

struct FrameHeader {
  std::uint32_t magic;
  std::uint32_t metadata_bytes;
  std::uint64_t size_version_flags;  // total bytes | version << 48 | flags << 56
};
static_assert(sizeof(FrameHeader) == 16);
static_assert(offsetof(FrameHeader, metadata_bytes) == 4);
static_assert(offsetof(FrameHeader, size_version_flags) == 8);

inline constexpr std::uint32_t kFrameMagic = 0x544d4853;  // "SHMT" in memory
inline constexpr std::uint8_t kFrameVersion = 2;
// Marks a flat frame: no metadata, but `metadata_bytes` of padding, then one run of bytes. See format/flat.h.
inline constexpr std::uint8_t kFlat = 1;
inline constexpr std::uint64_t kMaxFrameBytes = (std::uint64_t{1} << 48) - 1;
inline constexpr std::size_t kBufferAlignment = 64;
inline constexpr std::size_t kWordBytes = 8;  // word size of Cap'n Proto

// Cap'n Proto counts list elements in 29 bits; a segment must stay under 2^29 words.
inline constexpr std::size_t kMaxColumnCount = (std::size_t{1} << 29) - 1;
inline constexpr std::size_t kMaxMetadataBytes = ((std::size_t{1} << 29) - 1) * 8;

// A byte of `lengths` with this value stands for the next value of `ints`.
inline constexpr std::uint8_t kLengthEscape = 255;

// Bits of an array descriptor's flags.
enum ArrayFlag : std::uint8_t {
  kReadOnly = 1,   // the sender's array was not writable
  kFortran = 2,    // The first index varies fastest. Without kFortran and kStrided, the last index does.
  kStrided = 4,    // `views` has one stride in bytes per dimension.
  kOffset = 8,     // `views` has the offset in bytes of the first element in the buffer, before the strides.
  kExternal = 16,  // `buffer` is an index of `externals`.
  kNoBuffer = 32,  // an array without bytes
};
inline constexpr std::uint8_t kAllArrayFlags = 63;

inline constexpr std::uint32_t kNoIndex = UINT32_MAX;

// Returns a copy of memory that other processes may change. The barrier stops the compiler from reading the source a
// second time, so checks of the copy stay valid.
inline void copy_private(void* to, const void* from, std::size_t bytes) noexcept {
  std::memcpy(to, from, bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  asm volatile("" : : "r"(to) : "memory");
}

inline void write_header(std::byte* out, std::uint64_t metadata_bytes, std::uint64_t total_bytes,
                         std::uint8_t flags = 0) noexcept {
  const FrameHeader header{
      .magic = kFrameMagic,
      .metadata_bytes = static_cast<std::uint32_t>(metadata_bytes),
      .size_version_flags = total_bytes | std::uint64_t{kFrameVersion} << 48 | std::uint64_t{flags} << 56};
  std::memcpy(out, &header, sizeof(header));
}

// Reads the header once, because other processes may change the frame meanwhile.
inline FrameHeader read_header(const std::byte* frame) noexcept {
  FrameHeader header;
  copy_private(&header, frame, sizeof(header));
  return header;
}

constexpr std::uint64_t align_buffer(std::uint64_t offset) noexcept {
  return (offset + (kBufferAlignment - 1)) & ~std::uint64_t{kBufferAlignment - 1};
}

}  // namespace shmtree::format
