// Compares a snapshot of a channel with earlier ones: rates, shares of time, ages, and the end that limits throughput.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "shmtree/base/observe.h"

namespace shmtree::observer {

// The earlier snapshots of one channel.
class ChannelHistory {
 public:
  // Adds a snapshot taken at `now_ns`, and sets the fields of `channel` that depend on earlier ones.
  void add(ObservedChannel& channel, std::int64_t now_ns);

 private:
  struct Snapshot {
    std::int64_t at_ns = 0;
    std::uint64_t put = 0, received = 0;
  };
  // Maximum number of snapshots: a minute, at one snapshot per second. Snapshots that are older than every queued
  // message are dropped.
  static constexpr std::size_t kMaxSnapshots = 60;

  void add_rates(ObservedChannel& channel, std::int64_t now_ns);
  void add_shares(ObservedChannel& channel, std::int64_t now_ns);

  std::vector<Snapshot> snapshots_;  // newest first
  double full_seconds_ = 0.0, empty_seconds_ = 0.0;
};

// Histories of all channels, by arena and block. A channel that is missing from a snapshot loses its history.
using ChannelHistories = std::map<std::string, std::unordered_map<std::uint64_t, ChannelHistory>>;

// Sets, for each wait, the name of the object at which the process waits.
void name_waits(ObservedArena& arena);

}  // namespace shmtree::observer
