#include "memory/lease.h"

#include <memory>
#include <utility>

#include "memory/arena.h"

namespace shmtree::memory {

bool Lease::is_inherited() const noexcept {
  return arena_ != nullptr && arena_->holders().is_inherited(ref_, forks_);
}

void Lease::reset() noexcept {
  const std::shared_ptr<Arena> arena = std::move(arena_);
  arena_.reset();
  if (arena != nullptr) arena->holders().end_lease(ref_, fork_epoch_);
}

}  // namespace shmtree::memory
