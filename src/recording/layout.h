// What a recording is: an MCAP file (https://mcap.dev/spec) without chunks, so that frames lie in it as they are, each
// at a multiple of 64. The writer is python/shmtree/recording/_mcap.py.
//
//     magic  record...  magic
//
//     record     opcode: 1   content's bytes: 8   content
//     channel    number: 2   schema: 2   topic: text   encoding: text   metadata: map
//     message    channel: 2  sequence: 4  log time: 8  publish time: 8  frame
//     metadata   name: text  map
//
// A text is its bytes (4) and UTF-8; a map its bytes (4), and texts by turns. All numbers are little-endian, and none
// is aligned. Records of other opcodes are passed over: the header, padding, what lies behind the end of the data.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shmtree::recording {

static_assert(std::endian::native == std::endian::little, "numbers are read as they lie in the file");

inline constexpr std::string_view kMagic("\x89MCAP0\r\n", 8);
inline constexpr std::string_view kEncoding = "shmtree";
inline constexpr std::string_view kMissed = "shmtree.missed";  // the metadata: how many messages of a channel

enum class Opcode : std::uint8_t {
  kNone = 0x00,  // which no record has
  kChannel = 0x04,
  kMessage = 0x05,
  kChunk = 0x06,
  kMetadata = 0x0c,
  kDataEnd = 0x0f,
};

inline constexpr std::size_t kPrefixBytes = 1 + 8;           // of every record
inline constexpr std::size_t kMessageBytes = 2 + 4 + 8 + 8;  // before the frame
inline constexpr std::size_t kFrameAlignment = 64;

}  // namespace shmtree::recording
