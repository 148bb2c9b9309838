// The blocks that a block refers to: a list at its end, which everyone can write.
#include "memory/arena.h"
#include "platform/atomics.h"

namespace shmtree::memory {

using namespace platform;

// The list of a block's references, as far as it can be believed: it lies in memory that everyone can write.
std::span<const ListEntry> Arena::references_of(BlockId id, const BlockEntry& block) noexcept {
  const std::uint64_t length = load_acquire(block.list_length);
  if (length == 0) return {};
  const std::uint64_t offset = load_relaxed(block.list_offset);
  const std::uint64_t room = committed_of(block, id.size_class());
  if (offset % 8 != 0 || offset > room || length > (room - offset) / sizeof(ListEntry)) return {};
  const std::byte* data = address(id);
  if (data == nullptr) {  // no address space: what the list keeps is counted by a process that has some
    mark_dirty();
    return {};
  }
  return {reinterpret_cast<const ListEntry*>(data + offset), length};
}

Status Arena::set_references(const OwnedBlock& block, std::span<const BlockRef> referred, const WaitContext& wait) {
  BlockEntry& owner = *entry(block.ref_.id);
  const std::uint64_t list_bytes = referred.size() * sizeof(ListEntry);
  if (list_bytes > block.bytes_) return Error{Code::kInvalid, "a block too small for the list of its references"};
  const std::uint64_t offset = (block.bytes_ - list_bytes) / 8 * 8;
  auto* list = reinterpret_cast<ListEntry*>(block.data_ + offset);
  for (std::size_t i = 0; i < referred.size(); ++i) list[i] = ListEntry{referred[i].id.value, referred[i].generation};
  Status locked = lock_blocks(wait);
  if (!locked) return locked;
  store_relaxed(owner.list_offset, offset);
  store_release(owner.list_length, static_cast<std::uint32_t>(referred.size()));
  for (const BlockRef& ref : referred) {
    if (BlockEntry* target = entry(ref.id)) add(target->refcount, 1u);
  }
  unlock_blocks();
  return success();
}

std::vector<BlockRef> Arena::referred_to_by(BlockRef ref) {
  std::vector<BlockRef> found;
  const BlockEntry* owner = is_current(ref) ? entry(ref.id) : nullptr;
  if (owner == nullptr || load_acquire(owner->list_length) == 0) return found;
  for (const ListEntry& item : references_of(ref.id, *owner)) {
    const BlockRef referred = ref_of(item);
    if (!is_current(referred)) break;
    found.push_back(referred);
  }
  return found;
}

// Ends where referred_to_by() ends, and maps no more than is in use, whatever the list says.
std::uint64_t Arena::map_references(BlockId id, const BlockEntry& owner) noexcept {
  for (const ListEntry& item : references_of(id, owner)) {
    const BlockRef referred = ref_of(item);
    if (!was_used(referred.id)) break;
    const bool listed = mapping_->entry(referred.id) != nullptr;
    if (listed && !is_current(referred)) break;
    if (!listed || mapping_->address(referred.id) == nullptr) return std::uint64_t{1} << referred.id.size_class();
  }
  return 0;
}

}  // namespace shmtree::memory
