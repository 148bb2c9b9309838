// What lives in an arena besides channels, as seen from outside.
#pragma once

#include "observe/people.h"

namespace shmtree::observe {

LatestInfo look_at_latest(const ArenaFile& file, BlockRef block, const People& people);
BroadcastInfo look_at_broadcast(const ArenaFile& file, BlockRef block, const People& people);
ReplayInfo look_at_replay(const ArenaFile& file, BlockRef block, const People& people);

}  // namespace shmtree::observe
