// The block table of an arena file, as far as it can be believed: every word of it may be anything.
//
// Invariants:
//   - An entry or an address is given out only for a block that the geometry has, and stays valid as long as the
//     Mapping. Null means that this process has no address space for it.
//   - No walk goes beyond the entries that the file has pages for: looking further would commit them.
//   - A list of references lies within the bytes of its block.
//
// Thread safety: any thread. No state of its own but the Mapping below.
#pragma once

#include <span>
#include <vector>

#include "memory/mapping.h"
#include "platform/atomics.h"

namespace shmtree::memory {

class BlockTable {
 public:
  explicit BlockTable(Mapping& mapping) noexcept : mapping_(mapping) {}

  const Geometry& geometry() const noexcept { return mapping_.geometry(); }
  BlockEntry* entry(BlockId id) const noexcept { return geometry().contains(id) ? mapping_.entry(id) : nullptr; }
  std::byte* address(BlockId id) const noexcept { return geometry().contains(id) ? mapping_.address(id) : nullptr; }

  // Whether `ref` names a block in use with that generation; for numbers read from shared memory.
  bool is_current(BlockRef ref) const noexcept;
  // Whether what is known of `ref` is that this process cannot map it: it has no address space.
  bool is_unmapped(BlockRef ref) const noexcept {
    return ref.id.value != 0 && geometry().contains(ref.id) && (entry(ref.id) == nullptr || address(ref.id) == nullptr);
  }
  // How many of a block's bytes can be used, by its entry, which anybody may write: never more than it has.
  std::uint64_t room_of(BlockId id) const noexcept;
  // A receiver found it in a window: it no longer belongs to its writer.
  void make_live(BlockRef ref) noexcept;

  // Entries of a class that were ever used, as far as the mark can be believed.
  std::uint64_t used_entries(unsigned size_class) const noexcept;
  // The same for walks: as far as the table is in the file, too. A read beyond would commit it.
  std::uint64_t walked_entries(unsigned size_class) const noexcept;
  // Entries whose words the file has: the last may lie across into a page that nobody has touched.
  std::uint64_t present_entries(unsigned size_class) const noexcept;
  // visit(id, entry) of each block that was ever used and can be mapped.
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

  // The list of the blocks that a block refers to, as far as it can be believed.
  std::span<const ListEntry> references_of(BlockId id, const BlockEntry& block) const noexcept;
  // The same for a block that the caller holds, in the order in which they were recorded. A list that was damaged since
  // ends early.
  std::vector<BlockRef> referred_to_by(BlockRef ref) const;
  // Maps what a block that is in use refers to, as far as it was not. The size of a block that there is no address
  // space for; 0 when there was some for all.
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
    std::uint64_t left = kMostReferences;
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
// A chain of blocks, each with elements behind its header. A block is put before the chain, and stays in it, so walks
// need no lock.

// Each block has as many elements as all after it together, so a longer chain than this is a damaged one.
constexpr int kMostChained = 40;

enum class Walked { kAll, kStopped, kDamaged, kUnmapped };  // kUnmapped: this process has no address space for some

// Calls visit(block, elements, count) for each block of the chain until it returns false.
template <class Visit>
Walked walk_chain(const BlockTable& blocks, std::uint64_t packed, std::uint64_t element_bytes, Visit visit) noexcept {
  for (int links = 0; packed != 0; ++links) {
    const BlockRef ref = unpack(packed);
    if (links == kMostChained) return Walked::kDamaged;
    if (!blocks.is_current(ref)) return blocks.is_unmapped(ref) ? Walked::kUnmapped : Walked::kDamaged;
    auto* header = reinterpret_cast<ChainHeader*>(blocks.address(ref.id));
    if (header == nullptr) return Walked::kUnmapped;
    const std::uint64_t room = blocks.room_of(ref.id), count = platform::load_once(header->count);
    if (room < sizeof(ChainHeader) || count > (room - sizeof(ChainHeader)) / element_bytes) return Walked::kDamaged;
    if (!visit(ref, reinterpret_cast<std::byte*>(header + 1), count)) return Walked::kStopped;
    packed = platform::load_acquire(header->next);
  }
  return Walked::kAll;
}

}  // namespace shmtree::memory
