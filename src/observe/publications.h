// Observes the other objects in an arena: Latest, Broadcast and replay buffers.
#pragma once

#include "observe/observed_participants.h"

namespace shmtree::observer {

ObservedLatest snapshot_latest(const ArenaFile& file, BlockRef block, const ObservedParticipants& participants);
ObservedBroadcast snapshot_broadcast(const ArenaFile& file, BlockRef block, const ObservedParticipants& participants);
ObservedReplay snapshot_replay(const ArenaFile& file, BlockRef block, const ObservedParticipants& participants);

}  // namespace shmtree::observer
