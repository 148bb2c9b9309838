// The functions that the memory layer calls after a death: they find the blocks that a channel keeps, and wake its
// waiters.
#pragma once

#include "channel/control.h"
#include "memory/reconciler.h"

namespace shmtree::channel {

// Repairs one channel, under both of its locks.
void repair_channel(Arena& arena, BlockRef channel, memory::ReconcilePass& pass);
// Wakes the waiters of a channel. Under the arena lock, so that the channel is not freed meanwhile.
void wake_after_loss(Arena& arena, BlockRef channel) noexcept;

}  // namespace shmtree::channel
