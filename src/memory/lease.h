// Owns one pin of a block for this process. Move-only. The block may be freed once no process has a Lease of it.
#pragma once

#include <memory>
#include <utility>

#include "memory/layout.h"

namespace shmtree::memory {

class Arena;

class Lease {
 public:
  Lease() noexcept = default;
  Lease(Lease&& other) noexcept { take(other); }
  Lease& operator=(Lease&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  ~Lease() { reset(); }

  bool valid() const noexcept { return arena_ != nullptr; }
  const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }
  BlockRef ref() const noexcept { return ref_; }
  std::byte* data() const noexcept { return data_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  // Returns true if a child that was forked since the lease was made may have the block as well. Call it before the
  // block is handed to another owner.
  bool is_inherited() const noexcept;
  void reset() noexcept;

 private:
  friend class Arena;
  void take(Lease& other) noexcept {
    arena_ = std::move(other.arena_);
    ref_ = other.ref_;
    data_ = other.data_;
    bytes_ = other.bytes_;
    fork_epoch_ = other.fork_epoch_;
    forks_ = other.forks_;
  }

  std::shared_ptr<Arena> arena_;
  BlockRef ref_{};
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint32_t fork_epoch_ = 0;  // HolderTable::fork_epoch() when it was made
  std::uint32_t forks_ = 0;       // HolderTable::forks() when it was made
};

}  // namespace shmtree::memory
