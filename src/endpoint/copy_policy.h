// Whether what a call receives is copied out of the arena or viewed there: one rule for every language.
//
//   1. A message that came inline is copied: it has no block to view.
//   2. So is one that somebody had before and may still see. A receiver may write into what it receives, and nobody
//      else may see that.
//   3. Otherwise the caller's word holds.
//   4. Without one, small messages are copied, and all are while this process holds more than half of the budget: one
//      that keeps everything it receives does not stop the senders.
//
// Thread safety: functions.
#pragma once

#include <cstdint>
#include <span>

#include "channel/channel.h"

namespace shmtree::endpoint {

enum class CopyPolicy : std::uint8_t {
  kAuto,  // small is copied, large is viewed
  kAll,   // everything is copied
  kNone,  // every array is a view
};

// With kAuto, messages up to this size are copied, unless they refer to other blocks.
inline constexpr std::uint64_t kCopiedMessageBytes = 16384;

// Of a message of a channel. `referred` are the blocks that it refers to, and `blocks` their bytes.
CopyPolicy copy_policy(CopyPolicy asked, memory::Arena& arena, const channel::Incoming& message,
                       std::span<const memory::BlockRef> referred,
                       std::span<const std::span<const std::byte>> blocks) noexcept;

// Whether views hold more than half of the budget, `uncounted` bytes of theirs aside.
inline bool is_hoarding(memory::Arena& arena, std::uint64_t uncounted) noexcept {
  const std::uint64_t held = arena.pool().held_bytes();
  return held > uncounted && held - uncounted > arena.pool().max_bytes() / 2;
}

// Of what a Latest or a Broadcast published, which nobody may write. It holds `thing.kept_bytes()` itself.
template <class Thing>
CopyPolicy copy_policy_of_published(CopyPolicy asked, const Thing& thing, bool in_block) noexcept {
  if (!in_block) return CopyPolicy::kAll;
  if (asked != CopyPolicy::kAuto) return asked;
  memory::Arena& arena = *thing.arena();
  const bool is_hoarded = is_hoarding(arena, 0) && is_hoarding(arena, thing.kept_bytes());
  return is_hoarded ? CopyPolicy::kAll : CopyPolicy::kAuto;
}

// What a policy means for a message as a whole. `refers`: some of it lies in other blocks.
constexpr bool is_copied(CopyPolicy policy, std::uint64_t bytes, bool refers) noexcept {
  return policy == CopyPolicy::kAll || (policy == CopyPolicy::kAuto && !refers && bytes <= kCopiedMessageBytes);
}

}  // namespace shmtree::endpoint
