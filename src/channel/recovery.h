// The channels of this process, and the hooks that the memory layer needs: to find the blocks that a channel keeps
// after a death, and to attach a forked child.
#pragma once

#include "channel/channel.h"
#include "memory/reconcile_pass.h"
#include "platform/weak_registry.h"

namespace shmtree::channel {

platform::WeakRegistry<Channel>& channels() noexcept;

// Repairs one channel, under both of its locks.
struct Recovery {
  static void repair(Arena& arena, BlockRef channel, memory::ReconcilePass& pass);
};

}  // namespace shmtree::channel
