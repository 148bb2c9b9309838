// The invariants of the chunks of a replay buffer, as a function.
#pragma once

#include <algorithm>
#include <string>

#include "replay/rows/row_store.h"

namespace shmtree::replay {

// Returns the first violated invariant of the buffer in that control block, or an empty string. No other thread may
// change the buffer meanwhile.
inline std::string check_rows(memory::Arena& arena, memory::BlockRef control) {
  using platform::load_relaxed;
  std::byte* const block = arena.blocks().address(control.id);
  const auto& header = *reinterpret_cast<const ReplayHeader*>(block);
  const auto* progress = reinterpret_cast<const std::atomic<std::uint64_t>*>(block + header.progress_offset);
  const auto* chunks = reinterpret_cast<const ChunkInfo*>(block + header.info_offset);
  const std::uint64_t slots = header.rows_per_chunk;
  const std::uint64_t head = load_relaxed(header.head), tail = load_relaxed(header.tail);
  if (load_relaxed(header.opening) != 0) return "a chunk is being opened";
  std::uint64_t reserved = 0;
  for (std::uint64_t ticket = head; ticket < tail; ++ticket) {
    const Progress now = unpack_progress(load_relaxed(progress[ticket % header.chunks]));
    if (now.ticket == ticket) reserved += now.closed ? std::min<std::uint64_t>(now.rows, slots) : slots;
  }
  if (reserved != load_relaxed(header.reserved)) {
    return std::to_string(load_relaxed(header.reserved)) + " rows are reserved, not " + std::to_string(reserved);
  }
  if (reserved > header.capacity) return "more rows than the capacity";
  for (std::uint64_t chunk = 0; chunk < header.chunks; ++chunk) {
    const Progress at = unpack_progress(load_relaxed(progress[chunk]));
    if (at.ticket != 0 && at.ticket % header.chunks != chunk) return "a chunk has the ticket of another chunk";
    if (at.ticket >= tail) return "a chunk has a ticket that was never assigned";
    if (at.rows > slots) return "a chunk has too many rows";
    if (at.ready > at.rows) return "a chunk has more ready rows than rows";
    if (at.ticket == 0 || at.busy) continue;
    const auto& words = chunks[chunk];
    const std::uint64_t ends = load_relaxed(words.ends), truncated = load_relaxed(words.truncated);
    const std::uint64_t bits = ends | truncated | load_relaxed(words.finals) | load_relaxed(words.begins);
    if ((bits & ~bits_below(at.rows)) != 0) return "a chunk has bits of slots beyond its rows";
    if ((truncated & ~ends) != 0) return "a truncated episode did not end";
    if (load_relaxed(words.next) > tail || load_relaxed(words.previous) >= at.ticket)
      return "a link of a chunk is invalid";
  }
  return "";
}

inline std::string check_rows(const Store& store) {
  return check_rows(*store.arena(), store.block());
}

}  // namespace shmtree::replay
