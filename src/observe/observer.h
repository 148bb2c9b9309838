// Looks into the arenas of this user from outside: takes no slot in them and no lock, and has their files open for
// reading alone. So it can neither block nor change anything, whenever it is killed, and it sees as much of processes
// that are stopped, or were killed, as of others.
//
// Thread safety: free functions; any thread. May throw std::bad_alloc.
#pragma once

#include "observe/channels.h"
#include "observe/openers.h"
#include "shmtree/observe.h"

namespace shmtree::observer {

// Of what cannot be read.
constexpr const char* kNoUuid = "00000000000000000000000000000000";

// Every arena that a process of this user has open, as /proc shows it, by uuid: those that could not be read, or are
// only known by a name, last, with the reason. An error when this process has no descriptors left to look with: it
// needs two at once, however much there is to see. No part of such a look is given, as it would be wrong.
Result<std::vector<ObservedArena>> look_at_all();

// One arena by a descriptor of it, as of the processes that have it. Nothing for what is no arena, or not one yet.
Result<std::optional<ObservedArena>> look_at_arena(platform::UniqueFd fd, OpenArena open);

// The messages that are queued in a channel; none when it has gone. `block` as ObservedThing has it.
Result<std::vector<MessageInfo>> look_at_queue(const unsigned char uuid[16], std::uint64_t block, std::size_t most,
                                               std::uint64_t most_bytes);

}  // namespace shmtree::observer
