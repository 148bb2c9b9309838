#include "memory/inspector.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <unordered_map>
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

namespace {

std::string name_of(BlockId id) {
  return std::to_string(id.size_class()) + "/" + std::to_string(id.index());
}

}  // namespace

std::string Inspector::check() const {
  Sums sums;
  for (unsigned k = kMinClass; k <= parts_.table.geometry().max_class(); ++k) {
    std::vector<bool> listed(parts_.table.walked_entries(k), false);
    std::string wrong = check_lists(k, listed);
    if (wrong.empty()) wrong = check_blocks(k, listed, sums);
    if (!wrong.empty()) return wrong;
  }
  std::string wrong = check_refcounts();
  return wrong.empty() ? check_counts(sums) : wrong;
}

std::string Inspector::check_lists(unsigned size_class, std::vector<bool>& listed) const {
  ClassState& state = header_.class_state(size_class);
  for (std::atomic<std::uint64_t>* list : {&state.resting_first, &state.warm, &state.cold}) {
    std::uint64_t count = 0, last = 0;
    for (std::uint64_t next = load_acquire(*list); next != 0;) {
      if (next > listed.size() || listed[next - 1]) {
        return "a free list of class " + std::to_string(size_class) + " is broken";
      }
      listed[next - 1] = true;
      const BlockEntry& block = *parts_.table.entry(BlockId::make(size_class, next - 1));
      if (state_of(load_acquire(block.word)) != BlockState::kFree) return "a free list contains a block in use";
      if ((load_relaxed(block.committed) == 0) != (list == &state.cold)) return "a free block is on the wrong list";
      ++count;
      last = std::exchange(next, load_relaxed(block.next_free));
    }
    if (list == &state.resting_first &&
        (count != load_relaxed(state.resting_count) || last != load_relaxed(state.resting_last))) {
      return "the queue of resting blocks of class " + std::to_string(size_class) + " is broken";
    }
  }
  return "";
}

std::string Inspector::check_blocks(unsigned size_class, const std::vector<bool>& listed, Sums& sums) const {
  for (std::uint64_t index = 0; index < listed.size(); ++index) {
    const BlockId id = BlockId::make(size_class, index);
    const BlockEntry& block = *parts_.table.entry(id);
    const std::uint64_t committed = load_acquire(block.committed);
    sums.committed += committed;
    if (state_of(load_acquire(block.word)) == BlockState::kFree) {
      if (!listed[index]) return "free block " + name_of(id) + " is on no list";
      continue;
    }
    sums.used += committed;
    if ((load_relaxed(block.flags) & kCountedHeld) != 0) sums.held += committed;
  }
  return "";
}

std::string Inspector::check_refcounts() const {
  std::unordered_map<std::uint64_t, std::uint32_t> referred;
  parts_.table.for_each([&](BlockId id, const BlockEntry& block) {
    if (state_of(load_acquire(block.word)) == BlockState::kFree) return;
    for (const ListEntry& item : parts_.table.references_of(id, block)) {
      const BlockRef ref = ref_of(item);
      if (ref.id != id && parts_.table.is_current(ref)) ++referred[ref.id.value];
    }
  });
  const TransferTable transfers(header_, parts_.table, parts_.participants);
  transfers.for_each([&](const Transfer& transfer) {
    const BlockRef ref = unpack(load_relaxed(transfer.block));
    const bool counts = TransferTable::has_reference(load_acquire(transfer.state)) && parts_.table.is_current(ref);
    if (counts) ++referred[ref.id.value];
    return true;
  });
  for (const auto& [id, count] : referred) {
    if (load_relaxed(parts_.table.entry(BlockId{id})->refcount) != count) {
      return "the refcount of " + name_of(BlockId{id}) + " is wrong";
    }
  }
  return "";
}

std::string Inspector::check_counts(const Sums& sums) const {
  const BlockPool& pool = parts_.pool;
  const auto differs = [](const char* what, std::uint64_t said, std::uint64_t is) {
    return std::string(what) + " is " + std::to_string(said) + ", but blocks add up to " + std::to_string(is);
  };
  if (pool.committed_bytes() != sums.committed)
    return differs("committed_bytes", pool.committed_bytes(), sums.committed);
  if (pool.used_bytes() != sums.used) return differs("used_bytes", pool.used_bytes(), sums.used);
  if (pool.held_bytes() != sums.held) return differs("held_bytes", pool.held_bytes(), sums.held);
  if (sums.committed > pool.max_bytes()) return differs("max_bytes", pool.max_bytes(), sums.committed);
  if (load_acquire(header_.arena_lock) != 0) return "the arena lock is taken";
  if (needs_recovery(header_)) return "derived state is marked for recovery";
  return "";
}

}  // namespace shmtree::memory
