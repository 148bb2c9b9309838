// A recording is an MCAP file (https://mcap.dev/spec) with chunks that are not compressed, or without chunks, as older
// versions wrote it. So it contains the frames unchanged, each at a multiple of 64. The writer is
// python/shmtree/recording/_mcap.py.
//
//     magic  record...  magic
//
//     record     opcode: 1   content's bytes: 8   content
//     channel    number: 2   schema: 2   topic: text   encoding: text   metadata: map
//     message    channel: 2  sequence: 4  log time: 8  publish time: 8  frame
//     chunk      times: 16  size: 8  CRC: 4  compression: text  size: 8  record...
//     metadata   name: text  map
//
// A text is its size in bytes (4) and UTF-8. A map is its size in bytes (4), then keys and values in turn, as texts.
// All numbers are little-endian and unaligned. Readers skip records with other opcodes: the header, padding, and
// records after the end of the data. Readers ignore the size of a chunk, and read its records like records outside of
// chunks. The reason is that the size of the last chunk is wrong for a moment while the recorder writes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shmtree::recording {

static_assert(std::endian::native == std::endian::little, "numbers are read from the file without conversion");

inline constexpr std::string_view kMagic("\x89MCAP0\r\n", 8);
inline constexpr std::string_view kEncoding = "shmtree";
inline constexpr std::string_view kKind = "kind";  // metadata of a channel: what was recorded, such as "queue"
inline constexpr std::string_view kMissed = "shmtree.missed";  // metadata record: missed messages per channel

enum class Opcode : std::uint8_t {
  kNone = 0x00,  // no valid record has this opcode
  kChannel = 0x04,
  kMessage = 0x05,
  kChunk = 0x06,
  kMetadata = 0x0c,
  kDataEnd = 0x0f,
};

inline constexpr std::size_t kPrefixBytes = 1 + 8;           // opcode and size of every record
inline constexpr std::size_t kMessageBytes = 2 + 4 + 8 + 8;  // header of a message, before its frame
// Bytes of a chunk before its compression, and before its records if it is not compressed.
inline constexpr std::size_t kCompressionOffset = 8 + 8 + 8 + 4, kChunkBytes = kCompressionOffset + 4 + 8;
inline constexpr std::size_t kFrameAlignment = 64;

}  // namespace shmtree::recording
