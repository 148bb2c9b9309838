// Messages without decoding: receives them as frames that stand alone, and puts frames as they are.
//
// A put applies the same checks as receiving does, so that the process that puts invalid bytes gets the error, and not
// the receiver. Receivers check nevertheless, because they do not trust the sender.
//
// Thread safety: none for a frame; any thread may use the channel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "channel/channel.h"
#include "format/checked_frame.h"

namespace shmtree::endpoint {

// Memory for a frame, aligned like its buffers. Allocated by posix_memalign().
struct FreeBytes {
  void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
};
using FrameMemory = std::unique_ptr<std::byte, FreeBytes>;
Result<FrameMemory> frame_memory(std::uint64_t bytes);

// A whole frame. Owns its bytes (`copy`), or keeps the block of its message alive (`block`). A copied frame also keeps
// the block if the message carries transfers, since these end when the block is freed.
struct RawFrame {
  std::span<const std::byte> bytes{};
  FrameMemory copy{};
  memory::Lease block{};
  format::FrameContents contents{};
};

// Returns the frame of a received message. Arrays in other blocks are copied into it. A large frame stays in the
// message's block, and keeps it alive, if no other process may write to the block. Calls the hooks around long copies.
// Errors: kCorrupt and kIncompatible with the ticket, and kOutOfSharedMemory.
Result<RawFrame> raw_frame(memory::Arena& arena, channel::Incoming& message, platform::WaitHooks* hooks);

// Returns the frame of a message that a tap sees. It stays in the message's memory, and is valid until Tap::release().
// If the message has arrays in other blocks, it is a copy. kCorrupt, kIncompatible, kOutOfSharedMemory.
Result<RawFrame> seen_frame(memory::Arena& arena, const channel::Tap::Seen& seen);

// Restrictions of the channel into which a frame is put.
struct Terms {
  bool allow_pickle = false;
  bool portable = false;  // The channel refuses content that is valid on one machine only.
};
// Checks if the channel accepts a frame. `known_portable`: no pickle in it is specific to this machine.
//   kInvalid        it has arrays in other blocks, or a handle, or it is not portable and has to be
//   kPickleRefused  it has a pickle, and pickles are not allowed
Status check_may_go(const format::FrameContents& contents, const Terms& terms, bool known_portable);

// Returns true if nothing in the frame is specific to this machine.
constexpr bool is_portable(const format::FrameContents& contents, bool known_portable) noexcept {
  return contents.is_standalone && !contents.has_handle() && (known_portable || !contents.has_pickle);
}

}  // namespace shmtree::endpoint
