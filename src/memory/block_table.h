// Reads the block table of an arena file, with checks: any of its words may be damaged.
//
// Invariants:
//   - entry() and address() return a pointer only for a block within the geometry. It stays valid as long as the
//     Mapping. Null means that this process has no address space left to map it.
//   - No walk goes beyond the entries that the file has pages for: reading further would commit pages.
//   - A list of references lies within the bytes of its block.
//
// Thread safety: any thread. The only state is the Mapping.
#pragma once

#include <span>
#include <vector>

#include "memory/mapping.h"
#include "platform/atomics.h"
#include "platform/dcheck.h"

namespace shmtree::memory {

class BlockTable {
 public:
  explicit BlockTable(Mapping& mapping) noexcept : mapping_(mapping) {}

  const Geometry& geometry() const noexcept { return mapping_.geometry(); }
  BlockEntry* entry(BlockId id) const noexcept { return geometry().contains(id) ? mapping_.entry(id) : nullptr; }
  std::byte* address(BlockId id) const noexcept { return geometry().contains(id) ? mapping_.address(id) : nullptr; }

  // Returns true if `ref` names a block in use with that generation; for numbers read from shared memory.
  bool is_current(BlockRef ref) const noexcept;
  // Returns true if `ref` is within the geometry but this process has no address space left to map it.
  bool is_unmapped(BlockRef ref) const noexcept {
    return ref.id.value != 0 && geometry().contains(ref.id) && (entry(ref.id) == nullptr || address(ref.id) == nullptr);
  }
  // Returns the number of usable bytes of a block. It never exceeds the block size of the class, even if the entry is
  // damaged.
  std::uint64_t capacity_of(BlockId id) const noexcept;
  // Marks a block that a receiver has found in a window as live: it no longer belongs to its writer.
  void make_live(BlockRef ref) noexcept;

  // Returns the number of entries of a class that were ever used: the high-water mark, limited to the geometry.
  std::uint64_t used_entries(unsigned size_class) const noexcept;
  // Returns the number of entries that a walk may read. The file has pages for all of these; a read of other entries
  // would commit pages.
  std::uint64_t walked_entries(unsigned size_class) const noexcept;
  // Returns the number of entries that the file has pages for. The last one may reach into a page not touched yet.
  std::uint64_t present_entries(unsigned size_class) const noexcept;
  // Calls visit(id, entry) for each block that was ever used and can be mapped.
  template <class Visit>
  void for_each(Visit visit) const {
    for (unsigned k = kMinClass; k <= geometry().max_class(); ++k) {
      const std::uint64_t high = walked_entries(k);
      for (std::uint64_t index = 0; index < high; ++index) {
        const BlockId id = BlockId::make(k, index);
        if (BlockEntry* block = entry(id)) visit(id, *block);
      }
    }
  }

  // Returns a block's list of references; empty if its offset or length is damaged.
  std::span<const ListEntry> references_of(BlockId id, const BlockEntry& block) const noexcept;
  // Returns the blocks to which a block refers that the caller holds, in the order of the list. Ends early at a damaged
  // entry.
  std::vector<BlockRef> referred_to_by(BlockRef ref) const;
  // Maps the blocks to which a block in use refers. Returns 0, or the size of the first block for which there is no
  // address space.
  std::uint64_t unmappable_reference(BlockId id) const noexcept {
    const BlockEntry* owner = entry(id);
    return owner == nullptr || platform::load_acquire(owner->list_length) == 0 ? 0 : map_references(id, *owner);
  }
  // Returns the requested bytes of all blocks that a block in use refers to; a block that is named twice counts twice.
  // Reads at most `*left` references and subtracts them from it: a list in shared memory may be as long as its block,
  // and many slots may name it.
  std::uint64_t referred_bytes(BlockRef ref, std::uint64_t* left) const noexcept {
    const BlockEntry* owner = is_current(ref) ? entry(ref.id) : nullptr;
    return owner == nullptr || platform::load_acquire(owner->list_length) == 0 ? 0
                                                                               : sum_references(ref.id, *owner, left);
  }
  std::uint64_t referred_bytes(BlockRef ref) const noexcept {
    std::uint64_t left = kMaxReferences;
    return referred_bytes(ref, &left);
  }

 private:
  bool was_used(BlockId id) const noexcept;
  std::uint64_t sum_references(BlockId id, const BlockEntry& owner, std::uint64_t* left) const noexcept;
  std::uint64_t map_references(BlockId id, const BlockEntry& owner) const noexcept;

  Mapping& mapping_;
};

// --- Chains
//
// A chain of blocks, each with a header and elements. Blocks are added at the front and never removed, so walks need no
// lock.

// Each block has as many elements as all blocks after it together, so a longer chain is damaged.
constexpr int kMaxChainLength = 40;

enum class Walked { kAll, kStopped, kDamaged, kUnmapped };  // kUnmapped: no address space for a block

// Calls visit(block, elements, count) for each block of the chain until it returns false.
template <class Visit>
Walked walk_chain(const BlockTable& blocks, std::uint64_t packed, std::uint64_t element_bytes, Visit visit) noexcept {
  SHMTREE_DCHECK(element_bytes != 0);
  for (int links = 0; packed != 0; ++links) {
    const BlockRef ref = unpack(packed);
    if (links == kMaxChainLength) return Walked::kDamaged;
    if (!blocks.is_current(ref)) return blocks.is_unmapped(ref) ? Walked::kUnmapped : Walked::kDamaged;
    auto* header = reinterpret_cast<ChainHeader*>(blocks.address(ref.id));
    if (header == nullptr) return Walked::kUnmapped;
    const std::uint64_t available = blocks.capacity_of(ref.id), count = platform::load_once(header->count);
    if (available < sizeof(ChainHeader) || count > (available - sizeof(ChainHeader)) / element_bytes)
      return Walked::kDamaged;
    if (!visit(ref, reinterpret_cast<std::byte*>(header + 1), count)) return Walked::kStopped;
    packed = platform::load_acquire(header->next);
  }
  return Walked::kAll;
}

}  // namespace shmtree::memory
