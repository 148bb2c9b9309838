// Writes a message to memory for a channel, a Latest or a Broadcast. Also finds the blocks that a received frame refers
// to. endpoint/put.h lists the functions of a message.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "channel/channel.h"
#include "platform/copy.h"

namespace shmtree::endpoint {

// Memory for a small frame, from which put() copies it into the ring.
struct InlineFrame {
  alignas(64) std::byte bytes[channel::kMaxInlineBytes];
};

// Returns the size of a block that holds a frame and, at its end, the list of the blocks that the frame refers to.
std::uint64_t block_bytes(std::uint64_t frame_bytes, std::size_t referred) noexcept;
// Commits the pages of a cold block in one call, if the frame of `bytes` is large.
void make_pages(const memory::OwnedBlock& block, std::uint64_t bytes) noexcept;
// Writes the list of blocks behind the frame. kInvalid: more than kMaxReferences.
Status write_references(std::span<const memory::BlockRef> referred, memory::Arena& arena, memory::OwnedBlock& block,
                        const platform::WaitContext& wait);

// True for messages that may give objects away by transfers (message_transfers.h). Such a class has
//   gives_ends()   returns true if the message has a transfer.
//   carry(arena, block)   is called once the message is written to that block.
template <class Message>
concept HasTransfers = requires(Message& message, memory::Arena& arena) {
  message.carry(arena, memory::BlockRef{});
};

// Returns true if the message can go without a block where frames of `inline_bytes` fit. A message with transfers has a
// block, since they end when the block is freed.
template <class Message>
bool fits_inline(Message& message, std::uint64_t inline_bytes) noexcept {
  if constexpr (HasTransfers<Message>) {
    if (message.gives_ends()) [[unlikely]]
      return false;
  }
  return message.bytes() <= inline_bytes && message.blocks().empty();
}

// Writes the message to a block of at least block_bytes(). Releases the interpreter lock (`wait.hooks`) for frames
// above 64 KiB.
template <class Message>
Status write_block(Message& message, memory::Arena& arena, memory::OwnedBlock& block,
                   const platform::WaitContext& wait) {
  const std::uint64_t bytes = message.bytes();
  {
    const platform::BlockingScope released(bytes > platform::kLongCopyBytes ? wait.hooks : nullptr);
    make_pages(block, bytes);
    message.write(block.data());
  }
  if constexpr (HasTransfers<Message>) message.carry(arena, block.ref());
  return message.blocks().empty() ? success() : write_references(message.blocks(), arena, block, wait);
}

// Prepares `out` for Sending::put(): writes a small message to `scratch`, which must live until the put, and any other
// message to a block that it reserves. Errors: those of Sending::reserve() and write_references(); kFull also if a
// stopped process holds the arena's lock.
template <class Message>
[[gnu::always_inline]] inline Status stage(Message& message, channel::Channel& channel, InlineFrame& scratch,
                                           channel::Outgoing& out, const platform::WaitContext& wait) {
  const std::uint64_t bytes = message.bytes();
  if (fits_inline(message, channel.inline_bytes())) {
    message.write(scratch.bytes);
    out.block.abandon();
    out.inline_frame = {scratch.bytes, static_cast<std::size_t>(bytes)};
    return success();
  }
  auto block = channel.sending().reserve(block_bytes(bytes, message.blocks().size()), wait);
  if (!block) return std::move(block).error();
  Status written = write_block(message, *channel.arena(), *block, wait);
  if (!written) return channel::in_time(std::move(written).error(), Code::kFull);
  out.block = std::move(*block);
  out.bytes = bytes;
  return success();
}

// Writes the message to a new block that a Latest, or a Broadcast, may name. Errors: those of Allocator::allocate() and
// write_references(); kTimeout, not kFull as in stage(), if a stopped process holds the arena's lock.
template <class Message>
Result<memory::OwnedBlock> stage_published(Message& message, memory::Arena& arena, const platform::WaitContext& wait) {
  auto block =
      arena.allocate(block_bytes(message.bytes(), message.blocks().size()), memory::BlockKind::kPublished, wait);
  if (!block) return std::move(block).error();
  Status written = write_block(message, arena, *block, wait);
  if (!written) return std::move(written).error();
  return block;
}

// Returns the bytes of each block of `referred`, which BlockTable::referred_to_by() returns for the block of a received
// frame. They are valid while this process holds that block. Empty for a block that was freed.
std::vector<std::span<const std::byte>> referred_blocks(memory::Arena& arena,
                                                        std::span<const memory::BlockRef> referred);

}  // namespace shmtree::endpoint
