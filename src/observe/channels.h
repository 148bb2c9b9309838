// A channel, and the messages that are queued in it, as seen from outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "channel/layout.h"
#include "observe/people.h"

namespace shmtree::observer {

// Number of each end of a channel in transit that counts, by the channel's block (packed).
using EndsInTransit = std::unordered_map<std::uint64_t, channel::PerEnd<std::uint64_t>>;
EndsInTransit find_ends_in_transit(const ArenaFile& file, const memory::ArenaHeader& header, const People& people);

ObservedChannel look_at_channel(const ArenaFile& file, BlockRef block, const People& people,
                                const EndsInTransit& in_transit);

// A message that nobody has received yet.
struct MessageInfo {
  std::uint64_t ticket = 0;
  std::uint64_t bytes = 0;      // of its frame
  std::optional<int> sender{};  // its pid while it lives; 0 out of sight
  bool in_block = false;
  std::vector<std::byte> frame{};  // as it was copied; empty where it is too large, or went meanwhile
};

// The first `most` messages of the ring, as far as they were still there after they had been looked at. Frames of over
// `most_bytes` are not copied.
std::vector<MessageInfo> look_at_messages(const ArenaFile& file, BlockRef channel, const People& people,
                                          std::size_t most, std::uint64_t most_bytes);

}  // namespace shmtree::observer
