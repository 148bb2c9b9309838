// Observes the other objects in an arena: Latest, Broadcast and replay buffers.
#pragma once

#include "observe/people.h"

namespace shmtree::observer {

ObservedLatest look_at_latest(const ArenaFile& file, BlockRef block, const People& people);
ObservedBroadcast look_at_broadcast(const ArenaFile& file, BlockRef block, const People& people);
ObservedReplay look_at_replay(const ArenaFile& file, BlockRef block, const People& people);

}  // namespace shmtree::observer
