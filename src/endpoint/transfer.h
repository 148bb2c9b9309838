// A finished frame on its way into a channel, and a received one on its way out: the steps that every language shares.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "channel/channel.h"
#include "format/frame_builder.h"

namespace shmtree::endpoint {

// Where a frame that travels inside the ring is written before it is put.
struct InlineFrame {
  alignas(64) std::byte bytes[channel::kMostInlineBytes];
};

// Writes the builder's frame (finish() was called) to where `channel` will take it from, and makes `out` that: in
// `scratch`, which must live until it was put, or in a new block, for which room is waited for first. `referred` are
// the blocks that the frame's external references stand for, in their order; the caller holds them. Errors: those of
// Sending::wait_for_room and Arena::allocate; kFull also when a stopped process keeps the arena's lock. Nothing is put
// yet. The hooks of `wait` are told of copies above 64 KiB, which touch nothing but the memory added to the builder.
Status stage(format::FrameBuilder& builder, std::span<const memory::BlockRef> referred, channel::Channel& channel,
             InlineFrame& scratch, channel::Outgoing& out, const platform::WaitContext& wait);

// A block for a message of `bytes`, for which room is waited first. Errors as of stage().
Result<memory::OwnedBlock> message_block(channel::Channel& channel, std::uint64_t bytes,
                                         const platform::WaitContext& wait);

// The builder's frame in a new block that a Latest, or a Broadcast, may name; else as stage() has it in a block, but
// kTimeout when a stopped process keeps the arena's lock. Nothing is published yet.
Result<memory::OwnedBlock> stage_published(format::FrameBuilder& builder, std::span<const memory::BlockRef> referred,
                                           memory::Arena& arena, const platform::WaitContext& wait);
// The same of a frame that is there already, whole, and refers to no other block.
Result<memory::OwnedBlock> stage_published(std::span<const std::byte> frame, memory::Arena& arena,
                                           const platform::WaitContext& wait);

// The same of nothing but bytes (format/flat.h).
Result<memory::OwnedBlock> stage_published_run(std::span<const std::byte> run, memory::Arena& arena,
                                               const platform::WaitContext& wait);

// Stages a frame of nothing but bytes (format/flat.h), as stage() does the builder's.
Status stage_flat(std::span<const std::byte> run, channel::Channel& channel, InlineFrame& scratch,
                  channel::Outgoing& out, const platform::WaitContext& wait);

// Stages a frame that is there already, whole, as it is. It refers to no other block.
Status stage_frame(std::span<const std::byte> frame, channel::Channel& channel, InlineFrame& scratch,
                   channel::Outgoing& out, const platform::WaitContext& wait);

// The bytes of the blocks that a received frame's external references stand for, `referred` being what
// BlockTable::referred_to_by() says of the frame's block; valid as long as that is held. Empty for one that is gone.
std::vector<std::span<const std::byte>> referred_blocks(memory::Arena& arena,
                                                        std::span<const memory::BlockRef> referred);

}  // namespace shmtree::endpoint
