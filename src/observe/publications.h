// Observes the other objects in an arena: Latest, Broadcast and replay buffers.
#pragma once

#include "observe/observed_participants.h"

namespace shmtree::observer {

ObservedLatest look_at_latest(const ArenaFile& file, BlockRef block, const ObservedParticipants& participants);
ObservedBroadcast look_at_broadcast(const ArenaFile& file, BlockRef block, const ObservedParticipants& participants);
ObservedReplay look_at_replay(const ArenaFile& file, BlockRef block, const ObservedParticipants& participants);

}  // namespace shmtree::observer
