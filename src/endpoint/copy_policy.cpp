#include "endpoint/copy_policy.h"

#include <algorithm>

namespace shmtree::endpoint {

namespace {

// Returns true if an earlier receiver, or its forked child, may still view the message.
bool is_seen(memory::Arena& arena, const channel::Incoming& message,
             std::span<const memory::BlockRef> referred) noexcept {
  if (!message.came_back()) return false;
  const auto seen = [&](const memory::BlockRef& block) { return arena.holders().is_seen(block); };
  return seen(message.block()) || std::any_of(referred.begin(), referred.end(), seen);
}

// Returns the bytes that receiving this message pins. They do not count towards the bytes that this process already
// holds.
std::uint64_t brought_bytes(memory::Arena& arena, const channel::Incoming& message,
                            std::span<const std::span<const std::byte>> blocks) noexcept {
  const memory::BlockEntry* entry = arena.blocks().entry(message.block().id);
  std::uint64_t brought = entry == nullptr ? 0 : entry->committed.load(std::memory_order_acquire);
  for (const auto& block : blocks) brought += block.size();
  return brought;
}

}  // namespace

CopyPolicy copy_policy(CopyPolicy asked, memory::Arena& arena, const channel::Incoming& message,
                       std::span<const memory::BlockRef> referred,
                       std::span<const std::span<const std::byte>> blocks) noexcept {
  if (!message.in_block() || is_seen(arena, message, referred)) return CopyPolicy::kAll;
  if (asked != CopyPolicy::kAuto) return asked;
  return is_hoarding(arena, brought_bytes(arena, message, blocks)) ? CopyPolicy::kAll : CopyPolicy::kAuto;
}

std::vector<std::span<const std::byte>> referred_blocks(memory::Arena& arena,
                                                        std::span<const memory::BlockRef> referred) {
  std::vector<std::span<const std::byte>> blocks;
  blocks.reserve(referred.size());
  for (const memory::BlockRef& ref : referred) {
    const std::byte* data = arena.blocks().is_current(ref) ? arena.blocks().address(ref.id) : nullptr;
    const memory::BlockEntry* entry = data == nullptr ? nullptr : arena.blocks().entry(ref.id);
    const std::uint64_t size = entry == nullptr ? 0 : entry->size.load(std::memory_order_acquire);
    blocks.emplace_back(data, std::min(size, arena.blocks().capacity_of(ref.id)));
  }
  return blocks;
}

}  // namespace shmtree::endpoint
