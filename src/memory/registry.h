// The arenas of this process, and what is done with all of them around a fork.
#pragma once

#include "memory/arena.h"
#include "memory/weak_registry.h"

namespace shmtree::memory {

struct Registry {
  static WeakRegistry<Arena>& arenas() noexcept;
  // Once is enough; more do nothing.
  static void install_fork_handlers() noexcept;
};

}  // namespace shmtree::memory
