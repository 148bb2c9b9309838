// The channels of this process, and what the memory layer needs to know of channels: how to find what one keeps after a
// death, and how to hand membership to a forked child.
#pragma once

#include <memory>
#include <vector>

#include "channel/channel.h"
#include "memory/reconcile_pass.h"
#include "platform/atomics.h"

namespace shmtree::channel {

class Channels {
 public:
  static std::shared_ptr<Channel> find(const Arena& arena, BlockRef block);
  // Adds `channel`, unless the process has it already: then that one is returned.
  static std::shared_ptr<Channel> insert(const std::shared_ptr<Channel>& channel);
  static void erase(const Channel* channel) noexcept;
  // None when there is no memory to list them.
  static std::vector<std::shared_ptr<Channel>> all() noexcept;
  // For fork handlers, which run with every leaf mutex held.
  template <class Visit>
  static void for_each_unlocked(Visit visit) noexcept {
    for (const Entry& entry : state().channels) visit(*entry.raw);
  }

 private:
  struct Entry {
    Channel* raw;
    std::weak_ptr<Channel> channel;
  };
  struct State {
    platform::LeafMutex mutex;
    std::vector<Entry> channels;
  };
  static std::shared_ptr<Channel> find_locked(const Arena& arena, BlockRef block);
  static State& state() noexcept;  // never destroyed
};

// Repair of one channel, under both of its locks.
struct Recovery {
  static void repair(Arena& arena, BlockRef channel, memory::ReconcilePass& pass);
  // Whether an end of a channel that nobody holds is on its way to somebody.
  static bool has_grants(Arena& arena, BlockRef channel);
};

}  // namespace shmtree::channel
