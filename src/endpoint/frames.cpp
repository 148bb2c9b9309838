#include "endpoint/frames.h"

#include <string>
#include <utility>
#include <vector>

#include "endpoint/copy_policy.h"
#include "format/standalone.h"
#include "memory/transfers.h"
#include "platform/copy.h"

namespace shmtree::endpoint {

using channel::Incoming;
using format::CheckedFrame;
using memory::Arena;
using platform::WaitHooks;

namespace {

// Makes a frame of `bytes` bytes in memory of its own, and fills it with write().
template <class Write>
Status make_copy(RawFrame& frame, std::uint64_t bytes, WaitHooks* hooks, Write write) {
  auto memory = frame_memory(bytes);
  if (!memory) return std::move(memory).error();
  {
    const platform::BlockingScope released(bytes > platform::kLongCopyBytes ? hooks : nullptr);
    write(memory->get());
  }
  frame.copy = std::move(*memory);
  frame.bytes = {frame.copy.get(), static_cast<std::size_t>(bytes)};
  return success();
}

Status make_alone(RawFrame& frame, const CheckedFrame& checked, format::Blocks blocks, WaitHooks* hooks) {
  format::Standalone alone(checked, blocks);
  Status fits = alone.finish();
  if (!fits) return fits;
  frame.contents.bytes = alone.total_bytes();
  frame.contents.is_standalone = true;
  return make_copy(frame, alone.total_bytes(), hooks, [&](std::byte* to) { alone.write(to); });
}

using Referred = std::vector<memory::BlockRef>;

// Checks a message, which is in `block` unless that is null. Copies a message that does not stand alone. For any other
// message, keep(bytes, referred, blocks) decides where it stays.
template <class Keep>
Status fill(RawFrame& frame, Arena& arena, std::span<const std::byte> message, memory::BlockRef block, WaitHooks* hooks,
            Keep keep) {
  Referred referred;
  if (block.id.value != 0) referred = arena.blocks().referred_to_by(block);
  const auto blocks = referred_blocks(arena, referred);
  CheckedFrame checked;
  Status sound = checked.load(message, blocks);
  if (!sound) return sound;
  frame.contents = checked.contents();
  if (!frame.contents.is_standalone) return make_alone(frame, checked, blocks, hooks);
  return keep(message.first(static_cast<std::size_t>(frame.contents.bytes)), referred, blocks);
}

// Returns the frame that `fill` makes. Errors have the ticket of the message.
template <class Fill>
Result<RawFrame> filled(std::uint64_t ticket, Fill fill) {
  RawFrame frame;
  Status done = or_out_of_memory([&] { return fill(frame); });
  if (done) return frame;
  Error error = std::move(done).error();
  error.ticket = ticket;
  return error;
}

}  // namespace

Result<FrameMemory> frame_memory(std::uint64_t bytes) {
  void* data = nullptr;
  if (posix_memalign(&data, format::kBufferAlignment, bytes) != 0) return out_of_memory();
  return FrameMemory(static_cast<std::byte*>(data));
}

Result<RawFrame> raw_frame(Arena& arena, Incoming& message, WaitHooks* hooks) {
  return filled(message.ticket(), [&](RawFrame& frame) -> Status {
    const auto block = message.in_block() ? message.block() : memory::BlockRef{};
    if (memory::may_carry_transfers(arena, block)) {
      auto carrier = message.adopt();
      if (!carrier) return std::move(carrier).error();
      frame.block = std::move(*carrier);
    }
    const auto keep = [&](std::span<const std::byte> bytes, const Referred& referred, const auto& blocks) -> Status {
      if (is_copied(copy_policy(CopyPolicy::kAuto, arena, message, referred, blocks), bytes.size(), false)) {
        return make_copy(frame, bytes.size(), hooks,
                         [&](std::byte* to) { platform::copy_bytes(to, bytes.data(), bytes.size()); });
      }
      auto lease = message.adopt();
      if (!lease) return std::move(lease).error();
      frame.block = std::move(*lease);
      frame.bytes = bytes;
      return success();
    };
    return fill(frame, arena, message.frame(), block, hooks, keep);
  });
}

Result<RawFrame> seen_frame(Arena& arena, const channel::Tap::Seen& seen) {
  return filled(seen.ticket, [&](RawFrame& frame) {
    const auto keep = [&](std::span<const std::byte> bytes, const auto&, const auto&) {
      frame.bytes = bytes;
      return success();
    };
    return fill(frame, arena, seen.frame, seen.block, nullptr, keep);
  });
}

Status check_may_go(const format::FrameContents& contents, const Terms& terms, bool known_portable) {
  if (!contents.is_standalone) {
    return Error{.code = Code::kInvalid,
                 .message =
                     "the frame is not self-contained: it refers to arrays in other blocks of memory, which only its "
                     "own message can name"};
  }
  if (contents.has_handle()) {
    return Error{.code = Code::kInvalid,
                 .message = "node " + std::to_string(contents.handle) +
                            " of the frame is a handle of an object on this machine, such as an end, a shared array or "
                            "device memory. A handle is valid once, for its receiver: unpack the frame and put the "
                            "object instead"};
  }
  if (contents.needs_pickle() && !terms.allow_pickle) {
    return Error{.code = Code::kPickleRefused, .message = "The frame contains a pickle, but allow_pickle is False"};
  }
  if (terms.portable && !is_portable(contents, known_portable)) {
    return Error{.code = Code::kInvalid,
                 .message =
                     "the frame contains a pickle that was made without portable=True and may be valid on this machine "
                     "only, but this channel is portable"};
  }
  return success();
}

}  // namespace shmtree::endpoint
