// The lock words that the calling thread holds, for SHMTREE_DCHECK. A lock word itself cannot be asserted: it is in
// shared memory, which another process may damage. Empty in builds without SHMTREE_DCHECKS.
//
// Thread safety: any thread; each sees only its own locks.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "platform/dcheck.h"

namespace shmtree::memory {

class HeldLocks {
 public:
  using Word = std::atomic<std::uint32_t>;

  static void add([[maybe_unused]] const Word& word) noexcept {
#if defined(SHMTREE_DCHECKS)
    SHMTREE_DCHECK(count_ < words_.size() && !contains(word));
    words_[count_++] = &word;
#endif
  }
  static void remove([[maybe_unused]] const Word& word) noexcept {
#if defined(SHMTREE_DCHECKS)
    SHMTREE_DCHECK(contains(word));
    *std::find(words_.begin(), words_.begin() + count_, &word) = words_[count_ - 1];
    --count_;
#endif
  }
  // Call it only inside SHMTREE_DCHECK.
  static bool contains(const Word& word) noexcept {
    return std::find(words_.begin(), words_.begin() + count_, &word) != words_.begin() + count_;
  }

 private:
  // A call holds at most a reconcile_lock, both locks of a channel, the arena's lock, and a lock or extents_lock of a
  // ring or a replay buffer.
  inline static thread_local std::array<const Word*, 8> words_{};
  inline static thread_local std::size_t count_ = 0;
};

}  // namespace shmtree::memory
