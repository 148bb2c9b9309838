#include "replay/files/snapshot.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

namespace shmtree::replay {

using namespace platform;

namespace {

// Limit on rounds while writers keep opening chunks. The next save gets the rest.
constexpr int kMaxSnapshotRounds = 16;

StateEntry entry_of(const Store& store, std::uint64_t ticket) {
  const std::uint64_t most = store.shape().rows_per_chunk;
  const Progress at = store.progress(ticket);
  StateEntry entry{};
  if (at.ticket != ticket || at.rows == 0 || at.rows > most) return entry;
  const ChunkInfo& info = store.info(ticket);
  const std::uint64_t written = bits_below(at.rows);
  entry.ticket = ticket;
  entry.first_row = load_relaxed(info.first_row);
  entry.previous = load_relaxed(info.previous);
  entry.ends = load_relaxed(info.ends) & written;
  entry.finals = load_relaxed(info.finals) & written;
  entry.truncated = load_relaxed(info.truncated) & entry.ends;
  entry.begins = load_relaxed(info.begins) & written;
  entry.stream = load_relaxed(info.stream);
  entry.rows = static_cast<std::uint16_t>(at.rows);
  entry.ready = static_cast<std::uint16_t>(std::min(at.ready, at.rows));
  fence_acquire();
  return store.progress(ticket).ticket == ticket ? entry : StateEntry{};
}

// Returns true if `chunks` has the `ahead` slots after a slot, or the end of its episode.
bool has_successors(const std::vector<StateEntry>& chunks,
                    const std::unordered_map<std::uint64_t, std::size_t>& next_of, std::size_t chunk,
                    std::uint64_t slot, std::uint64_t ahead) {
  for (; ahead != 0; --ahead) {
    if ((chunks[chunk].ends >> slot & 1) != 0) return true;
    if (++slot < chunks[chunk].rows) continue;
    const auto next = next_of.find(chunks[chunk].ticket);
    if (next == next_of.end()) return false;
    if (chunks[chunk].begins == 0 && chunks[next->second].stream != chunks[chunk].stream) return false;
    chunk = next->second;
    slot = 0;
  }
  return true;
}

}  // namespace

Snapshot Snapshot::of(const Store& store) {
  Snapshot snapshot{.chunks = {}, .window = store.window()};
  std::uint64_t ticket = snapshot.window.head;
  for (int round = 0; round < kMaxSnapshotRounds && ticket < snapshot.window.tail; ++round) {
    for (; ticket < snapshot.window.tail; ++ticket) {
      const StateEntry entry = entry_of(store, ticket);
      if (entry.ticket != 0) snapshot.chunks.push_back(entry);
    }
    snapshot.window.tail = std::max(snapshot.window.tail, store.window().tail);
  }
  snapshot.window.tail = ticket;
  return snapshot;
}

void Snapshot::forget_before(std::uint64_t head) {
  window.head = std::clamp(head, window.head, window.tail);
  const auto gone = [&](const StateEntry& entry) { return entry.ticket < window.head; };
  chunks.erase(chunks.begin(), std::partition_point(chunks.begin(), chunks.end(), gone));
}

std::uint64_t Snapshot::rows() const noexcept {
  std::uint64_t rows = 0;
  for (const StateEntry& chunk : chunks) {
    rows += chunk.ready - static_cast<unsigned>(std::popcount(chunk.finals & bits_below(chunk.ready)));
  }
  return rows;
}

void correct_ready(std::vector<StateEntry>& chunks, std::uint64_t ahead) {
  if (ahead == 0) return;
  std::unordered_map<std::uint64_t, std::size_t> next_of;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].previous != 0 && chunks[i].previous < chunks[i].ticket) next_of[chunks[i].previous] = i;
  }
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    StateEntry& chunk = chunks[i];
    while (chunk.ready != 0 && (chunk.finals >> (chunk.ready - 1) & 1) == 0 &&
           !has_successors(chunks, next_of, i, chunk.ready - 1u, ahead)) {
      --chunk.ready;
    }
  }
}

}  // namespace shmtree::replay
