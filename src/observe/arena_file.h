// An arena's file as an observer sees it: opened read-only and never mapped.
//
// All data is copied with read(). Therefore the observer cannot write, reading a hole allocates no page, and no access
// can fault, even if the file is truncated. A copy may be torn; read_still() reports whether it is consistent. Every
// word is untrusted, so block numbers are checked against the geometry before use.
//
// Thread safety: one thread at a time. Returned copies belong to the caller.
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
  // Fails with Code::kIncompatible unless it is a sealed arena of this version.
  static Result<ArenaFile> open(platform::UniqueFd fd);

  const memory::Arena::Head& head() const noexcept { return head_; }
  const memory::Geometry& geometry() const noexcept { return geometry_; }

  // Returns false if the file ends before the last byte.
  bool read(std::uint64_t offset, void* out, std::uint64_t bytes) const noexcept {
    return platform::read_at(fd_.get(), offset, out, bytes);
  }
  // Returns true if the participant in `slot` is alive: its process holds a lock on that byte of the file.
  bool is_locked(std::uint32_t slot) const noexcept { return platform::byte_is_locked(fd_.get(), slot); }

  // Returns true if the block is in use with that generation.
  bool is_current(BlockRef ref) const noexcept;
  // Copies bytes of a current block. Returns false if the block is smaller, or is no longer current after the copy.
  bool read_block(BlockRef ref, std::uint64_t offset, void* out, std::uint64_t bytes) const noexcept;

  // Returns how many of `count` elements of `each` bytes at `offset` are in the block and have pages in the file.
  // `count` is an untrusted word of the file.
  std::uint64_t present(BlockRef ref, std::uint64_t offset, std::uint64_t count, std::uint64_t each) const noexcept;

  // Reads twice, until both copies are equal or after a few attempts. Sets `still` to true if they are equal.
  // Returns nullptr if the block does not exist.
  template <class T>
  std::unique_ptr<const T> read_still(BlockRef ref, bool& still) const {
    return read_still<T>([&](T& out) { return read_block(ref, 0, &out, sizeof(T)); }, still);
  }
  template <class T, class Read>
  static std::unique_ptr<const T> read_still(const Read& read, bool& still) {
    auto first = std::make_unique<T>(), second = std::make_unique<T>();
    still = false;
    for (int look = 0; look < kMaxReads && !still; ++look) {
      if (!read(*first) || !read(*second)) return nullptr;
      // Two reads of the same bytes, padding included.
      still = std::memcmp(first.get(), second.get(), sizeof(T)) == 0;  // NOLINT(bugprone-suspicious-memory-comparison)
    }
    return second;
  }

  // Calls visit(id, entry) for each block in use, with copies of the table's entries. `header` is a copy of the arena's
  // header.
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
  static constexpr int kMaxReads = 4;
  static constexpr std::uint64_t kEntriesAtOnce = 1024;

  ArenaFile(platform::UniqueFd fd, const memory::Arena::Head& head)
      : fd_(std::move(fd)), head_(head), geometry_(head.max_bytes) {}
  // Returns the number of entries that exist and have pages in the file, among the first `high` entries of a class.
  // `high` is an untrusted word.
  std::uint64_t present_entries(unsigned size_class, std::uint64_t high) const noexcept;

  platform::UniqueFd fd_;
  memory::Arena::Head head_;
  memory::Geometry geometry_;
};

}  // namespace shmtree::observer
