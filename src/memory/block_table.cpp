#include "memory/block_table.h"

#include <algorithm>

#include "platform/file.h"

namespace shmtree::memory {

using namespace platform;

// Returns true if a number read from shared memory is that of a block that was ever used. The table is mapped only for
// such blocks.
bool BlockTable::was_used(BlockId id) const noexcept {
  return geometry().contains(id) && id.index() < load_acquire(mapping_.header().class_state(id.size_class()).high);
}

bool BlockTable::is_current(BlockRef ref) const noexcept {
  const BlockEntry* block = was_used(ref.id) ? mapping_.entry(ref.id) : nullptr;
  if (block == nullptr) return false;
  const std::uint64_t word = load_acquire(block->word);
  return state_of(word) != BlockState::kFree && generation_of_block(word) == ref.generation;
}

std::uint64_t BlockTable::capacity_of(BlockId id) const noexcept {
  const BlockEntry* block = entry(id);
  return block == nullptr ? 0 : committed_of(*block, id.size_class());
}

void BlockTable::make_live(BlockRef ref) noexcept {
  BlockEntry* block = entry(ref.id);
  if (block == nullptr) return;
  std::uint64_t word = load_acquire(block->word);
  if (state_of(word) == BlockState::kWriting && generation_of_block(word) == ref.generation) {
    compare_swap_seq_cst(block->word, word, live_word(ref.generation));
  }
}

std::uint64_t BlockTable::used_entries(unsigned size_class) const noexcept {
  return std::min(load_acquire(mapping_.header().class_state(size_class).high), geometry().count(size_class));
}

std::uint64_t BlockTable::present_entries(unsigned size_class) const noexcept {
  if (!mapping_.file().is_ours()) return used_entries(size_class);
  const std::uint64_t bytes = pages_from(mapping_.file().number(), geometry().table_offset(size_class, 0),
                                         geometry().count(size_class) * sizeof(BlockEntry));
  return round_up(bytes, sizeof(BlockEntry)) / sizeof(BlockEntry);
}

std::uint64_t BlockTable::walked_entries(unsigned size_class) const noexcept {
  const std::uint64_t high = used_entries(size_class);
  return high <= kTableStep ? high : std::min(high, present_entries(size_class));
}

std::span<const ListEntry> BlockTable::references_of(BlockId id, const BlockEntry& block) const noexcept {
  const std::uint64_t length = load_acquire(block.list_length);
  if (length == 0) return {};
  const std::uint64_t offset = load_relaxed(block.list_offset);
  const std::uint64_t available = committed_of(block, id.size_class());
  if (offset % 8 != 0 || offset > available || length > (available - offset) / sizeof(ListEntry)) return {};
  const std::byte* data = address(id);
  if (data == nullptr) {  // no address space: a recovery in another process counts the references
    request_recovery(mapping_.header());
    return {};
  }
  return {reinterpret_cast<const ListEntry*>(data + offset), length};
}

std::vector<BlockRef> BlockTable::referred_to_by(BlockRef ref) const {
  std::vector<BlockRef> found;
  const BlockEntry* owner = is_current(ref) ? entry(ref.id) : nullptr;
  if (owner == nullptr || load_acquire(owner->list_length) == 0) return found;
  for (const ListEntry& item : references_of(ref.id, *owner)) {
    const BlockRef referred = ref_of(item);
    if (found.size() == kMaxReferences || !is_current(referred)) break;
    found.push_back(referred);
  }
  return found;
}

// Stops at the same entry as referred_to_by().
std::uint64_t BlockTable::sum_references(BlockId id, const BlockEntry& owner, std::uint64_t* left) const noexcept {
  std::uint64_t bytes = 0;
  for (const ListEntry& item : references_of(id, owner)) {
    const BlockRef referred = ref_of(item);
    if (*left == 0 || !is_current(referred)) break;
    --*left;
    bytes += std::min(load_relaxed(entry(referred.id)->size), std::uint64_t{1} << referred.id.size_class());
  }
  return bytes;
}

// Stops at the same entry as referred_to_by(). Maps only blocks that are in use, so a damaged list cannot make it map
// more.
std::uint64_t BlockTable::map_references(BlockId id, const BlockEntry& owner) const noexcept {
  for (const ListEntry& item : references_of(id, owner)) {
    const BlockRef referred = ref_of(item);
    if (!was_used(referred.id)) break;
    const bool listed = mapping_.entry(referred.id) != nullptr;
    if (listed && !is_current(referred)) break;
    if (!listed || mapping_.address(referred.id) == nullptr) return std::uint64_t{1} << referred.id.size_class();
  }
  return 0;
}

}  // namespace shmtree::memory
