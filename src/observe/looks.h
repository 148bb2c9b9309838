// What one look tells of a channel with those before it: rates, shares of the time, ages, and the end that limits.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "shmtree/observe.h"

namespace shmtree::observer {

// What is known of a channel from the looks before.
class PastOfChannel {
 public:
  // Adds this look, at that time; fills what it tells.
  void add(ObservedChannel& channel, std::int64_t now_ns);

 private:
  struct Look {
    std::int64_t at_ns = 0;
    std::uint64_t put = 0, received = 0;
  };
  // One for each message that is still there to tell its age is enough, and so are those of a minute.
  static constexpr std::size_t kMostLooks = 60;

  void add_rates(ObservedChannel& channel, std::int64_t now_ns);
  void add_shares(ObservedChannel& channel, std::int64_t now_ns);

  std::vector<Look> looks_;  // the last one first
  double full_seconds_ = 0.0, empty_seconds_ = 0.0;
};

// Of all channels, by arena and block. What a look did not see is forgotten.
using Pasts = std::map<std::string, std::unordered_map<std::uint64_t, PastOfChannel>>;

// Says of each wait at what it is.
void name_waits(ObservedArena& arena);

}  // namespace shmtree::observer
