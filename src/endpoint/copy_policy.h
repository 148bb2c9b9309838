// Decides whether a received message is copied out of the arena or viewed in place, for every language.
//
//   1. Messages that came inline are copied.
//   2. A redelivered message is copied if an earlier receiver may still view it: receivers may write into what they
//      receive.
//   3. Otherwise the caller's choice applies.
//   4. By default, small messages are copied, and all messages while this process holds more than half of the
//      budget, so that it cannot stall senders.
//
// Thread safety: all functions are thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "channel/channel.h"

namespace shmtree::endpoint {

enum class CopyPolicy : std::uint8_t {
  kAuto,  // copies small messages, views large ones
  kAll,   // copies everything
  kNone,  // views every array
};

// With kAuto, messages up to this size are copied, unless they refer to other blocks.
inline constexpr std::uint64_t kCopiedMessageBytes = 16384;

// Returns the policy for a channel message. `referred` are the blocks that it refers to, and `blocks` their bytes.
CopyPolicy copy_policy(CopyPolicy asked, memory::Arena& arena, const channel::Incoming& message,
                       std::span<const memory::BlockRef> referred,
                       std::span<const std::span<const std::byte>> blocks) noexcept;

// Returns true if held bytes, less `uncounted`, exceed half of the budget.
inline bool is_hoarding(memory::Arena& arena, std::uint64_t uncounted) noexcept {
  const std::uint64_t held = arena.pool().held_bytes();
  return held > uncounted && held - uncounted > arena.pool().max_bytes() / 2;
}

// Returns the policy for a published value, which is read-only. Ignores the bytes that `object` itself holds.
template <class Object>
CopyPolicy copy_policy_of_published(CopyPolicy asked, const Object& object, bool in_block) noexcept {
  if (!in_block) return CopyPolicy::kAll;
  if (asked != CopyPolicy::kAuto) return asked;
  memory::Arena& arena = *object.arena();
  const bool is_hoarded = is_hoarding(arena, 0) && is_hoarding(arena, object.kept_bytes());
  return is_hoarded ? CopyPolicy::kAll : CopyPolicy::kAuto;
}

// Returns true if the whole message is copied. `refers`: part of it is in other blocks.
constexpr bool is_copied(CopyPolicy policy, std::uint64_t bytes, bool refers) noexcept {
  return policy == CopyPolicy::kAll || (policy == CopyPolicy::kAuto && !refers && bytes <= kCopiedMessageBytes);
}

// Returns the bytes of each block of `referred`, which BlockTable::referred_to_by() returns for the block of a received
// frame. They are valid while this process holds that block. Empty for a block that was freed.
std::vector<std::span<const std::byte>> referred_blocks(memory::Arena& arena,
                                                        std::span<const memory::BlockRef> referred);

}  // namespace shmtree::endpoint
