#include "memory/lease.h"

#include "memory/arena.h"

namespace shmtree::memory {

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    reset();
    arena_ = std::move(other.arena_);
    ref_ = other.ref_;
    data_ = other.data_;
    bytes_ = other.bytes_;
    fork_epoch_ = other.fork_epoch_;
  }
  return *this;
}

void Lease::reset() noexcept {
  const std::shared_ptr<Arena> arena = std::move(arena_);
  arena_.reset();
  if (arena != nullptr) arena->holders().end_lease(ref_, fork_epoch_);
}

}  // namespace shmtree::memory
