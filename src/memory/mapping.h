// An arena file, and the pieces of it that this process has mapped.
//
// Invariants: a piece is mapped when first used and stays mapped as long as the Mapping, so addresses stay valid. The
// Geometry that create() checked determines the pieces, whatever the file says later.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "memory/layout.h"
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
  Participant& participant(std::uint32_t slot) const noexcept {
    SHMTREE_DCHECK(slot < kMaxParticipants);
    return reinterpret_cast<Participant*>(control_ + kHeaderBytes)[slot];
  }

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

}  // namespace shmtree::memory
