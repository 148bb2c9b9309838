#include "memory/inspector.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <utility>

#include "platform/clock.h"

namespace shmtree::memory {

using namespace platform;

std::vector<HolderInfo> Inspector::holders() const {
  std::vector<HolderInfo> found;
  const std::int64_t now = coarse_monotonic_ns();
  // Skips dead holders, which the next reconcile removes.
  std::array<std::optional<bool>, kMaxParticipants> alive{};
  const auto lives = [&](std::uint32_t slot) {
    if (!alive[slot]) alive[slot] = parts_.participants.is_owner_alive(slot);
    return *alive[slot];
  };
  parts_.table.for_each([&](BlockId id, const BlockEntry& block) {
    const std::uint64_t word = load_acquire(block.word);
    if (state_of(word) != BlockState::kLive) return;
    const bool shown = is_kind(block, BlockKind::kMessage) || is_kind(block, BlockKind::kArray) ||
                       is_kind(block, BlockKind::kPublished);
    if (!shown) return;
    block.holders.for_each([&](std::uint32_t slot) {
      if (!lives(slot)) return;
      found.push_back(HolderInfo{BlockRef{id, generation_of_block(word)}, load_relaxed(block.committed),
                                 load_relaxed(parts_.participants.slot(slot).pid),
                                 now - std::clamp<std::int64_t>(load_relaxed(block.since_ns), 0, now)});
    });
  });
  return found;
}

std::string Inspector::describe_holders(std::size_t most) const {
  struct Total {
    int pid;
    std::uint64_t bytes;
    std::int64_t oldest_ns;
  };
  std::vector<Total> totals;
  for (const HolderInfo& info : holders()) {
    auto found = std::find_if(totals.begin(), totals.end(), [&](const Total& total) { return total.pid == info.pid; });
    if (found == totals.end()) found = totals.insert(totals.end(), Total{info.pid, 0, 0});
    found->bytes += info.bytes;
    found->oldest_ns = std::max(found->oldest_ns, info.held_ns);
  }
  std::sort(totals.begin(), totals.end(), [](const Total& a, const Total& b) { return a.bytes > b.bytes; });
  std::string text;
  for (std::size_t i = 0; i < std::min(most, totals.size()); ++i) {
    char line[128];
    std::snprintf(line, sizeof line, "%spid %d holds %llu bytes, the oldest for %.1f s", i == 0 ? "" : "; ",
                  totals[i].pid, static_cast<unsigned long long>(totals[i].bytes),
                  static_cast<double>(totals[i].oldest_ns) / 1e9);
    text += line;
  }
  return text.empty() ? "no process holds any" : text;
}

ArenaStats Inspector::stats() const {
  ArenaStats stats{};
  stats.max_bytes = parts_.pool.max_bytes();
  stats.committed_bytes = parts_.pool.committed_bytes();
  stats.used_bytes = parts_.pool.used_bytes();
  stats.held_bytes = parts_.pool.held_bytes();
  stats.reconciles = load_acquire(header_.reconciles);
  parts_.table.for_each([&](BlockId, const BlockEntry& block) {
    if (state_of(load_acquire(block.word)) != BlockState::kFree) ++stats.blocks;
  });
  const std::uint32_t slots = parts_.participants.used_slots();
  for (std::uint32_t slot = 0; slot < slots; ++slot) stats.participants += parts_.participants.is_owner_alive(slot);
  return stats;
}

}  // namespace shmtree::memory
