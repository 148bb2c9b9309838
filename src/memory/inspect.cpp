// Looking in: holders, counts, and the invariants as a function.
#include <algorithm>
#include <array>
#include <cstdio>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "memory/arena.h"
#include "platform/atomics.h"

namespace shmtree::memory {

using namespace platform;

std::uint64_t Arena::lease_count() {
  const std::lock_guard guard(holds_mutex_);
  std::uint64_t count = 0;
  holds_.for_each([&](const HoldTable::Hold& hold) { count += hold.leases; });
  return count;
}

std::vector<HolderInfo> Arena::holders() {
  std::vector<HolderInfo> found;
  const std::int64_t now = coarse_monotonic_ns();
  // What the dead had is only waiting for a reconcile.
  std::array<std::optional<bool>, kMaxParticipants> alive{};
  const auto lives = [&](std::uint32_t slot) {
    if (!alive[slot]) alive[slot] = is_alive(make_identity(slot, load_acquire(participant(slot).generation)));
    return *alive[slot];
  };
  for (unsigned k = kMinClass; k <= geometry().max_class(); ++k) {
    const std::uint64_t high = walked_entries(k);
    for (std::uint64_t index = 0; index < high; ++index) {
      const BlockId id = BlockId::make(k, index);
      const BlockEntry* block = entry(id);
      if (block == nullptr) break;
      const std::uint64_t word = load_acquire(block->word);
      const auto kind = static_cast<BlockKind>(load_relaxed(block->kind));
      if (state_of(word) != BlockState::kLive || (kind != BlockKind::kMessage && kind != BlockKind::kArray)) continue;
      block->holders.for_each([&](std::uint32_t slot) {
        if (!lives(slot)) return;
        found.push_back(HolderInfo{BlockRef{id, generation_of_block(word)}, load_relaxed(block->committed),
                                   load_relaxed(participant(slot).pid),
                                   now - std::clamp<std::int64_t>(load_relaxed(block->since_ns), 0, now)});
      });
    }
  }
  return found;
}

std::string Arena::describe_holders(std::size_t most) {
  struct Total {
    int pid;
    std::uint64_t bytes;
    std::int64_t oldest_ns;
  };
  std::vector<Total> totals;
  for (const HolderInfo& info : holders()) {
    auto known = std::find_if(totals.begin(), totals.end(), [&](const Total& total) { return total.pid == info.pid; });
    if (known == totals.end()) known = totals.insert(totals.end(), Total{info.pid, 0, 0});
    known->bytes += info.bytes;
    known->oldest_ns = std::max(known->oldest_ns, info.held_ns);
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
  return text.empty() ? "nobody holds any" : text;
}

ArenaStats Arena::stats() {
  ArenaStats stats{};
  stats.max_bytes = max_bytes();
  stats.committed_bytes = load_acquire(header().committed_bytes);
  stats.used_bytes = load_acquire(header().used_bytes);
  stats.held_bytes = held_bytes();
  stats.reconciles = load_acquire(header().reconciles);
  for (unsigned k = kMinClass; k <= geometry().max_class(); ++k) {
    const std::uint64_t high = walked_entries(k);
    for (std::uint64_t index = 0; index < high; ++index) {
      const BlockEntry* block = entry(BlockId::make(k, index));
      if (block != nullptr && state_of(load_acquire(block->word)) != BlockState::kFree) ++stats.blocks;
    }
  }
  const std::uint32_t slots = std::min(load_acquire(header().participants_high), kMaxParticipants);
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    if (is_alive(make_identity(slot, load_acquire(participant(slot).generation)))) ++stats.participants;
  }
  return stats;
}

std::string Arena::check() {
  std::uint64_t committed_bytes = 0, used = 0, held = 0;
  const auto name = [](BlockId id) { return std::to_string(id.size_class()) + "/" + std::to_string(id.index()); };
  std::unordered_map<std::uint64_t, std::uint32_t> referred;
  for (unsigned k = kMinClass; k <= geometry().max_class(); ++k) {
    ClassState& state = header().classes[k - kMinClass];
    std::vector<bool> listed(walked_entries(k), false);
    for (std::atomic<std::uint64_t>* list : {&state.warm, &state.cold}) {
      for (std::uint64_t next = load_acquire(*list); next != 0;) {
        if (next > listed.size() || listed[next - 1]) return "a free list of class " + std::to_string(k) + " is broken";
        listed[next - 1] = true;
        const BlockEntry& block = *entry(BlockId::make(k, next - 1));
        if (state_of(load_acquire(block.word)) != BlockState::kFree) return "a free list names a block in use";
        if ((load_relaxed(block.committed) != 0) != (list == &state.warm)) return "a free block is on the wrong list";
        next = load_relaxed(block.next_free);
      }
    }
    for (std::uint64_t index = 0; index < listed.size(); ++index) {
      const BlockId id = BlockId::make(k, index);
      const BlockEntry& block = *entry(id);
      const std::uint64_t committed = load_acquire(block.committed);
      committed_bytes += committed;
      if (state_of(load_acquire(block.word)) == BlockState::kFree) {
        if (!listed[index]) return "free block " + name(id) + " is on no list";
        continue;
      }
      used += committed;
      if ((load_relaxed(block.flags) & kCountedHeld) != 0) held += committed;
      for (const ListEntry& item : references_of(id, block)) {
        const BlockRef ref = ref_of(item);
        if (ref.id != id && is_current(ref)) ++referred[ref.id.value];
      }
    }
  }
  for (const auto& [id, count] : referred) {
    if (load_relaxed(entry(BlockId{id})->refcount) != count)
      return "the references of " + name(BlockId{id}) + " are miscounted";
  }
  const auto differs = [](const char* what, std::uint64_t said, std::uint64_t is) {
    return std::string(what) + " says " + std::to_string(said) + " and is " + std::to_string(is);
  };
  if (load_acquire(header().committed_bytes) != committed_bytes)
    return differs("committed_bytes", load_acquire(header().committed_bytes), committed_bytes);
  if (load_acquire(header().used_bytes) != used) return differs("used_bytes", load_acquire(header().used_bytes), used);
  if (held_bytes() != held) return differs("held_bytes", held_bytes(), held);
  if (committed_bytes > max_bytes()) return differs("max_bytes", max_bytes(), committed_bytes);
  if (load_acquire(header().arena_lock) != 0) return "the arena lock is taken";
  if (load_acquire(header().dirty) != 0) return "derived state is marked dirty";
  return "";
}

}  // namespace shmtree::memory
