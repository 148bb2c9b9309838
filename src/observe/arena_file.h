// An arena's file as an observer has it: opened for reading alone, and never mapped.
//
// Everything is copied out by read(). So nothing can be written, no page is allocated for a hole that was looked at,
// and no address can fault, whatever becomes of the file. A copy may be torn, and every word of it may be anything:
// what names a block is compared with the geometry before it is used, and read_still() says whether a copy is of one
// moment.
//
// Thread safety: one thread at a time, but copies of what was read are the reader's own.
#pragma once

#include <cstring>
#include <memory>
#include <optional>

#include "memory/arena.h"

namespace shmtree::observer {

using memory::BlockEntry;
using memory::BlockId;
using memory::BlockRef;

class ArenaFile {
 public:
  // Code::kIncompatible unless it is a sealed arena of this version.
  static Result<ArenaFile> open(platform::UniqueFd fd);

  const memory::Arena::Head& head() const noexcept { return head_; }
  const memory::Geometry& geometry() const noexcept { return geometry_; }

  // False where the file ends before.
  bool read(std::uint64_t offset, void* out, std::uint64_t bytes) const noexcept {
    return platform::read_at(fd_.get(), offset, out, bytes);
  }
  // Whether somebody keeps the byte of that slot locked, and so lives.
  bool is_locked(std::uint32_t slot) const noexcept { return platform::byte_is_locked(fd_.get(), slot); }

  bool read_entry(BlockId id, BlockEntry& out) const noexcept {
    return geometry_.contains(id) && read(geometry_.table_offset(id.size_class(), id.index()), &out, sizeof out);
  }
  // Whether it is a block in use with that generation.
  bool is_current(BlockRef ref) const noexcept;
  // Bytes of such a block. False where it has fewer, or is another by now.
  bool read_block(BlockRef ref, std::uint64_t offset, void* out, std::uint64_t bytes) const noexcept;

  // Of elements of `each` bytes that begin there, and are as many as a word of the file says, those that the file has
  // pages for.
  std::uint64_t present(BlockRef ref, std::uint64_t offset, std::uint64_t count, std::uint64_t each) const noexcept;

  // Reads until two looks in a row are the same, a few times. Nothing where there is no such block.
  template <class T>
  std::unique_ptr<const T> read_still(BlockRef ref, bool& still) const {
    return read_still<T>([&](T& out) { return read_block(ref, 0, &out, sizeof(T)); }, still);
  }
  template <class T, class Read>
  static std::unique_ptr<const T> read_still(const Read& read, bool& still) {
    auto first = std::make_unique<T>(), second = std::make_unique<T>();
    still = false;
    for (int look = 0; look < kMostLooks && !still; ++look) {
      if (!read(*first) || !read(*second)) return nullptr;
      // Two reads of the same bytes, padding included.
      still = std::memcmp(first.get(), second.get(), sizeof(T)) == 0;  // NOLINT(bugprone-suspicious-memory-comparison)
    }
    return second;
  }

  // visit(id, entry) of each block that is in use, in copies of the table. `header` as it was read.
  template <class Visit>
  void for_each_block(const memory::ArenaHeader& header, const Visit& visit) const {
    const auto entries = std::make_unique<BlockEntry[]>(kEntriesAtOnce);
    for (unsigned k = memory::kMinClass; k <= geometry_.max_class(); ++k) {
      const std::uint64_t high = present_entries(k, header.classes[k - memory::kMinClass].high.load());
      for (std::uint64_t first = 0; first < high; first += kEntriesAtOnce) {
        const std::uint64_t count = std::min(high - first, kEntriesAtOnce);
        if (!read(geometry_.table_offset(k, first), entries.get(), count * sizeof(BlockEntry))) break;
        for (std::uint64_t i = 0; i < count; ++i) {
          if (memory::state_of(entries[i].word.load()) == memory::BlockState::kFree) continue;
          visit(BlockId::make(k, first + i), const_cast<const BlockEntry&>(entries[i]));
        }
      }
    }
  }

 private:
  static constexpr int kMostLooks = 4;
  static constexpr std::uint64_t kEntriesAtOnce = 1024;

  ArenaFile(platform::UniqueFd fd, const memory::Arena::Head& head)
      : fd_(std::move(fd)), head_(head), geometry_(head.max_bytes) {}
  // Of the first `high` entries of a class, as a word of the file says, those that the class has and the file has pages
  // for.
  std::uint64_t present_entries(unsigned size_class, std::uint64_t high) const noexcept;

  platform::UniqueFd fd_;
  memory::Arena::Head head_;
  memory::Geometry geometry_;
};

}  // namespace shmtree::observer
