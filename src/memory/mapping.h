// An arena file: the pieces of it that this process has mapped, and checked access to its block table.
//
// Invariants:
//   - A piece is mapped when first used and stays mapped as long as the Mapping, so addresses stay valid. The Geometry
//     that create() checked determines the pieces, whatever the file says later.
//   - BlockTable checks what it reads, since any word of the table may be damaged. Its entry() and address() return a
//     pointer only for a block within the geometry. Null means that this process has no address space left to map it.
//   - No walk goes beyond the entries that the file has pages for: reading further would commit pages.
//   - A list of references lies within the bytes of its block.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memory/layout.h"
#include "platform/atomics.h"
#include "platform/checked_fd.h"
#include "platform/dcheck.h"
#include "platform/fork.h"

namespace shmtree::memory {

class Mapping {
 public:
  // Maps the control part of the file.
  static Result<std::unique_ptr<Mapping>> create(platform::UniqueFd fd, std::uint64_t max_bytes, bool huge_pages,
                                                 std::uint64_t page_bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const platform::CheckedFd& file() const noexcept { return file_; }
  const Geometry& geometry() const noexcept { return geometry_; }
  // The budget that was passed to create(), whatever the header says now.
  std::uint64_t max_bytes() const noexcept { return max_bytes_; }
  ArenaHeader& header() const noexcept { return *reinterpret_cast<ArenaHeader*>(control_); }
  // Returns the slots of all participants.
  Participant* participants() const noexcept { return reinterpret_cast<Participant*>(control_ + kHeaderBytes); }

  // Returns the table of wake pipes of that participant, or null if it cannot be mapped.
  WakeEntry* wake_table(std::uint32_t slot) noexcept {
    SHMTREE_DCHECK(slot < kMaxParticipants);
    std::byte* piece = piece_of(wake_tables_, slot);
    if (piece == nullptr) [[unlikely]] {
      piece = map_piece(wake_tables_, slot, geometry_.wake_table_offset(slot), kWakeTableBytes, false);
    }
    return reinterpret_cast<WakeEntry*>(piece);
  }

  // Returns the error for a null address: no address space is left to map `what`, or the file's descriptor was closed.
  Error unmapped(const std::string& what) const;
  // Returns the table entry of a block that geometry() contains; null if its piece cannot be mapped (unmapped()).
  BlockEntry* entry(BlockId id) noexcept {
    SHMTREE_DCHECK(geometry_.contains(id));
    std::byte* piece = piece_of(tables_[id.size_class() - kMinClass], id.index() / kEntriesPerPiece);
    if (piece == nullptr) [[unlikely]] {
      piece = map_table(id.size_class(), id.index() / kEntriesPerPiece);
      if (piece == nullptr) return nullptr;
    }
    return reinterpret_cast<BlockEntry*>(piece) + id.index() % kEntriesPerPiece;
  }

  // Returns the address of such a block; null if it cannot be mapped.
  std::byte* address(BlockId id) noexcept {
    SHMTREE_DCHECK(geometry_.contains(id));
    const unsigned shift = piece_shift(id.size_class()) - id.size_class();
    std::byte* piece = piece_of(data_[id.size_class() - kMinClass], id.index() >> shift);
    if (piece == nullptr) [[unlikely]] {
      piece = map_data(id.size_class(), id.index() >> shift);
      if (piece == nullptr) return nullptr;
    }
    return piece + ((id.index() & ((std::uint64_t{1} << shift) - 1)) << id.size_class());
  }

 private:
  static constexpr std::uint64_t kEntriesPerPiece = 1024;  // 192 KiB of table
  static constexpr unsigned kPieceShift = 21;              // small blocks are mapped in pieces of 2 MiB
  static_assert(kEntriesPerPiece * sizeof(BlockEntry) % kMaxPageBytes == 0);

  // Pointers to pieces by number. The list is allocated, in full length, when the first piece is mapped.
  struct Pieces {
    std::atomic<std::atomic<std::byte*>*> list{nullptr};
    std::uint64_t count = 0;
  };
  static unsigned piece_shift(unsigned size_class) noexcept {
    return size_class > kPieceShift ? size_class : kPieceShift;
  }
  static std::byte* piece_of(const Pieces& pieces, std::uint64_t number) noexcept {
    std::atomic<std::byte*>* list = pieces.list.load(std::memory_order_acquire);
    return list == nullptr ? nullptr : list[number].load(std::memory_order_acquire);
  }

  Mapping(platform::UniqueFd fd, std::uint64_t max_bytes, bool huge_pages, std::uint64_t page_bytes)
      : file_(std::move(fd)), huge_pages_(huge_pages), max_bytes_(max_bytes), geometry_(max_bytes, page_bytes) {}
  std::byte* map_table(unsigned size_class, std::uint64_t number) noexcept;
  std::byte* map_data(unsigned size_class, std::uint64_t number) noexcept;
  std::byte* map_piece(Pieces& pieces, std::uint64_t number, std::uint64_t offset, std::uint64_t bytes,
                       bool huge) noexcept;
  bool remember(std::byte* address, std::uint64_t bytes) noexcept;

  const platform::CheckedFd file_;
  bool huge_pages_;
  std::uint64_t max_bytes_;
  Geometry geometry_;
  std::byte* control_ = nullptr;
  Pieces wake_tables_;
  Pieces tables_[kClasses];
  Pieces data_[kClasses];
  platform::ForkSafeMutex mutex_;
  std::vector<std::pair<std::byte*, std::uint64_t>> mapped_;  // under mutex_
};

// Reads the block table, with checks.
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
