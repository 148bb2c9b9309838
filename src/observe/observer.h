// Takes snapshots of this user's arenas from outside. The observer occupies no participant slot, takes no lock, and
// opens the files read-only. It cannot block or change anything, even if it is killed at any point. It sees stopped and
// dead processes as well as live ones.
//
// Thread safety: all functions are thread-safe. May throw std::bad_alloc.
#pragma once

#include "observe/channels.h"
#include "observe/openers.h"
#include "shmtree/base/observe.h"

namespace shmtree::observer {

// Stands for the uuid of an arena that cannot be read.
constexpr const char* kNoUuid = "00000000000000000000000000000000";

// Returns every arena that a process of this user has open according to /proc, sorted by uuid. Arenas that could not be
// read, or are known only by a name, come last, with the reason. Fails if this process has no free descriptors; it
// needs two at a time. It then returns no partial snapshot, which would be misleading.
Result<std::vector<ObservedArena>> snapshot_all();

// Observes one arena through a descriptor of its file. `open` lists the processes that have it open. Returns nullopt if
// the file is not an arena, or not yet.
Result<std::optional<ObservedArena>> snapshot_arena(platform::UniqueFd fd, OpenArena open);

// Returns the messages queued in a channel, or none if the channel no longer exists. `block` is ObservedObject::block.
Result<std::vector<MessageInfo>> snapshot_queue(const unsigned char uuid[16], std::uint64_t block, std::size_t most,
                                                std::uint64_t max_bytes);

}  // namespace shmtree::observer
