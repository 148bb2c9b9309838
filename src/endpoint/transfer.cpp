#include "endpoint/transfer.h"

#include <algorithm>
#include <string>

#include "format/flat.h"
#include "platform/copy.h"
#include "platform/file.h"

namespace shmtree::endpoint {

using channel::Outgoing;
using platform::WaitContext;

namespace {

constexpr std::uint64_t kColdCopy = 1u << 20;  // fresh pages are mapped in one call from this size on: 2x over faults

// A list of references takes the block's end, aligned; see HolderTable::refer.
std::uint64_t block_bytes(std::uint64_t frame_bytes, std::size_t referred) noexcept {
  return memory::round_up(frame_bytes, 8) + referred * sizeof(memory::ListEntry);
}

// A lock that was not to be had in time, since its owner is stopped, is a channel that stayed full.
Error in_time(Error error) {
  if (error.code == Code::kTimeout) error.code = Code::kFull;
  return error;
}

Error too_large() {
  return Error{.code = Code::kMessageTooLarge, .message = "The message has more than 256 TiB."};
}

void write_flat(std::byte* to, std::span<const std::byte> run) {
  format::write_flat_prefix(to, run.size());
  platform::copy_bytes(to + format::kFlatBuffer, run.data(), run.size());
}

}  // namespace

Result<memory::OwnedBlock> message_block(channel::Channel& channel, std::uint64_t bytes, const WaitContext& wait) {
  Status room = channel.sending().wait_for_room(bytes, wait);
  if (!room) return std::move(room).error();
  auto block = channel.arena()->allocate(bytes, memory::BlockKind::kMessage, wait);
  if (!block) return in_time(std::move(block).error());
  return block;
}

namespace {

// The builder's frame at the beginning of a block that has room for it, and for the list of what it refers to.
Status write_frame(format::FrameBuilder& builder, std::span<const memory::BlockRef> referred, memory::Arena& arena,
                   memory::OwnedBlock& block, const WaitContext& wait) {
  {
    const platform::BlockingScope released(builder.buffer_bytes() > platform::kLongCopyBytes ? wait.hooks : nullptr);
    const std::uint64_t bytes = builder.total_bytes();
    if (block.cold() && bytes >= kColdCopy) {
      platform::populate(block.data(), memory::round_up(bytes, memory::kPageBytes));
    }
    builder.copy_buffers(block.data());
  }
  builder.write_metadata(block.data());
  if (referred.empty()) return success();
  if (referred.size() > memory::kMostReferences) {
    return Error{Code::kInvalid, "a message refers to " + std::to_string(referred.size()) +
                                     " arrays of the arena; at most " + std::to_string(memory::kMostReferences) +
                                     " are possible"};
  }
  return arena.holders().refer(block, referred, wait);
}

// A new block as what is put, with what `write` writes to it.
template <class Write>
Status stage_block(channel::Channel& channel, std::uint64_t bytes, Outgoing& out, const WaitContext& wait,
                   Write write) {
  auto block = message_block(channel, bytes, wait);
  if (!block) return std::move(block).error();
  {
    const platform::BlockingScope released(bytes > platform::kLongCopyBytes ? wait.hooks : nullptr);
    if (block->cold() && bytes >= kColdCopy) {
      platform::populate(block->data(), memory::round_up(bytes, memory::kPageBytes));
    }
    write(block->data());
  }
  out.block = std::move(*block);
  out.bytes = bytes;
  return success();
}

}  // namespace

Status stage_flat(std::span<const std::byte> run, channel::Channel& channel, InlineFrame& scratch, Outgoing& out,
                  const WaitContext& wait) {
  if (const std::uint64_t bytes = format::flat_short_bytes(run.size()); bytes <= channel.inline_bytes()) {
    format::write_flat_short(scratch.bytes, run);
    out.block.abandon();
    out.inline_frame = {scratch.bytes, static_cast<std::size_t>(bytes)};
    return success();
  }
  if (run.size() > format::kMaxFrameBytes - format::kFlatBuffer) {
    return too_large();
  }
  return stage_block(channel, format::flat_long_bytes(run.size()), out, wait,
                     [run](std::byte* to) { write_flat(to, run); });
}

Status stage_frame(std::span<const std::byte> frame, channel::Channel& channel, InlineFrame& scratch, Outgoing& out,
                   const WaitContext& wait) {
  if (frame.size() > channel.inline_bytes()) {
    return stage_block(channel, frame.size(), out, wait,
                       [frame](std::byte* to) { platform::copy_bytes(to, frame.data(), frame.size()); });
  }
  platform::copy_bytes(scratch.bytes, frame.data(), frame.size());
  out.block.abandon();
  out.inline_frame = {scratch.bytes, frame.size()};
  return success();
}

Status stage(format::FrameBuilder& builder, std::span<const memory::BlockRef> referred, channel::Channel& channel,
             InlineFrame& scratch, Outgoing& out, const WaitContext& wait) {
  const std::uint64_t frame_bytes = builder.total_bytes();
  if (frame_bytes <= channel.inline_bytes() && referred.empty()) {
    builder.write_metadata(scratch.bytes);
    builder.copy_buffers(scratch.bytes);
    out.block.abandon();
    out.inline_frame = {scratch.bytes, static_cast<std::size_t>(frame_bytes)};
    return success();
  }
  auto block = message_block(channel, block_bytes(frame_bytes, referred.size()), wait);
  if (!block) return std::move(block).error();
  Status written = write_frame(builder, referred, *channel.arena(), *block, wait);
  if (!written) return in_time(std::move(written).error());
  out.block = std::move(*block);
  out.bytes = frame_bytes;
  return success();
}

Result<memory::OwnedBlock> stage_published(format::FrameBuilder& builder, std::span<const memory::BlockRef> referred,
                                           memory::Arena& arena, const WaitContext& wait) {
  auto block = arena.allocate(block_bytes(builder.total_bytes(), referred.size()), memory::BlockKind::kPublished, wait);
  if (!block) return std::move(block).error();
  Status written = write_frame(builder, referred, arena, *block, wait);
  if (!written) return std::move(written).error();
  return block;
}

namespace {

template <class Write>
Result<memory::OwnedBlock> published_block(std::uint64_t bytes, memory::Arena& arena, const WaitContext& wait,
                                           Write write) {
  auto block = arena.allocate(bytes, memory::BlockKind::kPublished, wait);
  if (!block) return std::move(block).error();
  const platform::BlockingScope released(bytes > platform::kLongCopyBytes ? wait.hooks : nullptr);
  write(block->data());
  return block;
}

}  // namespace

Result<memory::OwnedBlock> stage_published(std::span<const std::byte> frame, memory::Arena& arena,
                                           const WaitContext& wait) {
  return published_block(frame.size(), arena, wait,
                         [frame](std::byte* to) { platform::copy_bytes(to, frame.data(), frame.size()); });
}

Result<memory::OwnedBlock> stage_published_run(std::span<const std::byte> run, memory::Arena& arena,
                                               const WaitContext& wait) {
  if (run.size() > format::kMaxFrameBytes - format::kFlatBuffer) return too_large();
  return published_block(format::flat_long_bytes(run.size()), arena, wait,
                         [run](std::byte* to) { write_flat(to, run); });
}

std::vector<std::span<const std::byte>> referred_blocks(memory::Arena& arena,
                                                        std::span<const memory::BlockRef> referred) {
  std::vector<std::span<const std::byte>> blocks;
  blocks.reserve(referred.size());
  for (const memory::BlockRef& ref : referred) {
    const std::byte* data = arena.blocks().is_current(ref) ? arena.blocks().address(ref.id) : nullptr;
    const memory::BlockEntry* entry = data == nullptr ? nullptr : arena.blocks().entry(ref.id);
    const std::uint64_t size = entry == nullptr ? 0 : entry->size.load(std::memory_order_acquire);
    blocks.emplace_back(data, std::min(size, arena.blocks().room_of(ref.id)));
  }
  return blocks;
}

}  // namespace shmtree::endpoint
