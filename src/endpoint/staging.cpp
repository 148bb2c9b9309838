#include "endpoint/staging.h"

#include <algorithm>
#include <string>

#include "platform/file.h"

namespace shmtree::endpoint {

using platform::WaitContext;

namespace {

// From this size on, fresh pages are mapped in one call: twice as fast as page faults.
constexpr std::uint64_t kColdCopy = 1u << 20;

}  // namespace

// The list of references is at the end of the block, aligned; see HolderTable::refer.
std::uint64_t block_bytes(std::uint64_t frame_bytes, std::size_t referred) noexcept {
  return referred == 0 ? frame_bytes : memory::round_up(frame_bytes, 8) + referred * sizeof(memory::ListEntry);
}

void make_pages(const memory::OwnedBlock& block, std::uint64_t bytes) noexcept {
  if (!block.cold() || bytes < kColdCopy) return;
  platform::populate(block.data(), memory::round_up(bytes, memory::kPageBytes));
}

Status write_references(std::span<const memory::BlockRef> referred, memory::Arena& arena, memory::OwnedBlock& block,
                        const WaitContext& wait) {
  if (referred.size() > memory::kMaxReferences) {
    return Error{Code::kInvalid, "a message refers to " + std::to_string(referred.size()) +
                                     " arrays of the arena; the limit is " + std::to_string(memory::kMaxReferences)};
  }
  return arena.holders().refer(block, referred, wait);
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
