// A block that this process is writing. The destructor frees it unless it was published or turned into a Lease.
// Move-only.
#pragma once

#include <utility>

#include "memory/block_pool.h"
#include "platform/dcheck.h"

namespace shmtree::memory {

class Reclaimer;

class OwnedBlock {
 public:
  OwnedBlock() noexcept = default;
  OwnedBlock(Reclaimer& reclaimer, const BlockPool::Taken& taken, Identity writer, std::uint64_t bytes,
             bool cold) noexcept
      : reclaimer_(&reclaimer), ref_(taken.ref), writer_(writer), data_(taken.data), bytes_(bytes), cold_(cold) {
    SHMTREE_DCHECK(data_ != nullptr && writer_ != kNoIdentity && bytes_ <= std::uint64_t{1} << ref_.id.size_class());
  }
  OwnedBlock(OwnedBlock&& other) noexcept { *this = std::move(other); }
  OwnedBlock& operator=(OwnedBlock&& other) noexcept {
    if (this != &other) {
      abandon();
      reclaimer_ = std::exchange(other.reclaimer_, nullptr);
      ref_ = other.ref_;
      writer_ = other.writer_;
      data_ = other.data_;
      bytes_ = other.bytes_;
      cold_ = other.cold_;
    }
    return *this;
  }
  ~OwnedBlock() { abandon(); }

  bool valid() const noexcept { return reclaimer_ != nullptr; }
  BlockRef ref() const noexcept { return ref_; }
  // The process that writes it. A forked child inherits the object without being the writer.
  Identity writer() const noexcept { return writer_; }
  std::byte* data() const noexcept {
    SHMTREE_DCHECK(valid());
    return data_;
  }
  std::uint64_t bytes() const noexcept { return bytes_; }
  // True if pages were committed for it. They have never been touched, so a copy into them is faster after populate().
  bool cold() const noexcept { return cold_; }

  // Call it after the block was stored in a window, or pinned: it no longer belongs to its writer.
  void publish() noexcept;
  void abandon() noexcept {
    if (valid()) give_back();
  }
  // Drops the object without a change to the block: another owner is responsible for it.
  void release() noexcept { reclaimer_ = nullptr; }

 private:
  void give_back() noexcept;

  Reclaimer* reclaimer_ = nullptr;  // valid because the writer keeps the arena
  BlockRef ref_{};
  Identity writer_ = kNoIdentity;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  bool cold_ = false;
};

}  // namespace shmtree::memory
