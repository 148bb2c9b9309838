// The channels of this process, and what the memory layer needs to know of channels: how to find what one keeps after a
// death, and how to hand membership to a forked child.
#pragma once

#include "channel/channel.h"
#include "memory/reconcile_pass.h"
#include "memory/weak_registry.h"

namespace shmtree::channel {

memory::WeakRegistry<Channel>& channels() noexcept;

// Repair of one channel, under both of its locks.
struct Recovery {
  static void repair(Arena& arena, BlockRef channel, memory::ReconcilePass& pass);
};

}  // namespace shmtree::channel
