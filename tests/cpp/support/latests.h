// Latests for tests. All words of a version contain its number, so that torn versions are detected.
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "latest/store.h"
#include "support/arenas.h"
#include "support/ring_check.h"

namespace shmtree::test {

using latest::Held;
using LatestStore = latest::Store;

inline std::shared_ptr<LatestStore> new_latest(std::uint64_t history = 0,
                                               const std::shared_ptr<Arena>& arena = new_arena()) {
  return LatestStore::create(arena, {.history = history}, patience()).value();
}
inline broadcast::RingHeader& header_of(LatestStore& store) {
  return *reinterpret_cast<broadcast::RingHeader*>(store.arena()->blocks().address(store.block().id));
}
inline broadcast::Entry& entry_of(LatestStore& store, std::uint64_t version) {
  return reinterpret_cast<broadcast::Entry*>(&header_of(store) + 1)[(version - 1) % (store.history() + 2)];
}

// Publishes `words` words that all equal `value`. The default fits in a block of one page.
inline Result<std::uint64_t> publish(LatestStore& store, std::uint64_t value, std::size_t words = 8,
                                     const WaitContext& wait = patience()) {
  auto block = store.arena()->allocate(words * 8, BlockKind::kPublished, wait);
  if (!block) return std::move(block).error();
  auto* out = reinterpret_cast<std::uint64_t*>(block->data());
  std::fill_n(out, words, value);
  return store.publish(std::move(*block), words * 8, wait);
}
// Returns the value of the words, or nullopt if they differ.
inline std::optional<std::uint64_t> value_of(const Held& held) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(held.block.data());
  for (std::size_t i = 0; i < held.bytes / 8; ++i) {
    if (words[i] != words[0]) return std::nullopt;
  }
  return words[0];
}
inline std::optional<std::uint64_t> value_at(LatestStore& store, std::uint64_t version) {
  auto held = store.at(version);
  return held ? value_of(*held) : std::nullopt;
}

}  // namespace shmtree::test
