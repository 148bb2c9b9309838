// Messages that are not decoded: taken as frames that stand alone, and put as they are.
//
// A frame that is put goes through the checks that an arriving message goes through, so that who has the wrong bytes is
// told, and not who receives them. Receivers check all the same.
//
// Thread safety: none; channels are anybody's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "channel/channel.h"
#include "format/checked_frame.h"

namespace shmtree::endpoint {

// Memory for a frame, aligned as its buffers are. Of std::free.
struct FreeBytes {
  void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
};
using FrameMemory = std::unique_ptr<std::byte, FreeBytes>;
Result<FrameMemory> frame_memory(std::uint64_t bytes);

// A whole frame, and what keeps it: memory of its own, or a hold on the block of its message.
struct RawFrame {
  std::span<const std::byte> bytes{};
  FrameMemory copy{};
  memory::Lease block{};
  format::FrameContents contents{};
};

// The frame of a message received, with its arrays in other blocks copied into it. It lies in the message's block if
// that is large, and nobody else may write there; then it holds it. kCorrupt and kIncompatible with the ticket,
// kOutOfSharedMemory. The hooks are told of long copies.
Result<RawFrame> raw_frame(memory::Arena& arena, channel::Incoming& message, platform::WaitHooks* hooks);

// The frame of a message that a tap sees: in the message's memory, until Tap::release(), unless it has arrays in other
// blocks, which are copied into it. kCorrupt, kIncompatible, kOutOfSharedMemory.
Result<RawFrame> seen_frame(memory::Arena& arena, const channel::Tap::Seen& seen);

// Where frames are put.
struct Terms {
  bool allow_pickle = false;
  bool portable = false;  // nothing may go there that means something on one machine only
};
// Whether a frame may go there. `known_portable`: nothing in its pickles means something on this machine only.
// kInvalid: it has arrays in other blocks, or a handle in it, or is not portable and is to be; kPickleRefused.
Status check_may_go(const format::FrameContents& contents, const Terms& terms, bool known_portable);

// Whether nothing in it means something on this machine only.
constexpr bool is_portable(const format::FrameContents& contents, bool known_portable) noexcept {
  return contents.stands_alone && !contents.has_handle() && (known_portable || !contents.has_pickle);
}

}  // namespace shmtree::endpoint
