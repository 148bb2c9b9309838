// Observes a channel and its queued messages without attaching to the arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "channel/layout.h"
#include "observe/observed_participants.h"

namespace shmtree::observer {

// Number of sending and receiving ends in transit that still count as attached, by the channel's packed block.
using EndsInTransit = std::unordered_map<std::uint64_t, channel::PerEnd<std::uint64_t>>;
EndsInTransit find_ends_in_transit(const ArenaFile& file, const memory::ArenaHeader& header,
                                   const ObservedParticipants& participants);

ObservedChannel snapshot_channel(const ArenaFile& file, BlockRef block, const ObservedParticipants& participants,
                                 const EndsInTransit& in_transit);

// A message that no receiver has taken yet.
struct MessageInfo {
  std::uint64_t ticket = 0;
  std::uint64_t bytes = 0;      // size of its frame
  std::optional<int> sender{};  // pid of a live sender; 0 if it is out of sight
  bool in_block = false;
  std::vector<std::byte> frame{};  // copy; empty if the frame is too large or was freed meanwhile
};

// Returns up to `most` of the first messages of the ring. Omits messages that were received during the copy. Frames
// larger than `max_bytes` are not copied.
std::vector<MessageInfo> snapshot_messages(const ArenaFile& file, BlockRef channel,
                                           const ObservedParticipants& participants, std::size_t most,
                                           std::uint64_t max_bytes);

}  // namespace shmtree::observer
