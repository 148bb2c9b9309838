// The invariants of the ring of a Broadcast or a Latest, as a function.
#pragma once

#include <algorithm>
#include <string>

#include "broadcast/ring.h"

namespace shmtree::broadcast {

// Returns the first violated invariant of the ring in that control block, or an empty string. No other thread may use
// the ring meanwhile.
inline std::string check_ring(memory::Arena& arena, memory::BlockRef control) {
  using memory::BlockRef;
  using platform::load_relaxed;
  auto& header = *reinterpret_cast<RingHeader*>(arena.blocks().address(control.id));
  const std::uint64_t entries = header.entries, end = load_relaxed(header.tail);
  const bool has_cursors = header.magic == kBroadcastUse.magic;
  const Cursors cursors(arena, header, has_cursors ? kBroadcastUse.cursors : kLatestUse.cursors);
  auto* const first = reinterpret_cast<std::byte*>(has_cursors ? cursors_of(header) + kMaxCursors : cursors_of(header));
  const auto entry_at = [&](std::uint64_t index) -> Entry& {
    return *reinterpret_cast<Entry*>(first + index * header.entry_bytes);
  };
  const memory::ReferenceList references(arena,
                                         reinterpret_cast<memory::ListEntry*>(first + entries * header.entry_bytes));
  if (load_relaxed(header.putting) != 0) return "a put was interrupted";
  for (std::uint64_t index = 0; index < entries; ++index) {
    const std::uint64_t ticket = load_relaxed(entry_at(index).ticket);
    const BlockRef listed = references.at(index);
    if (ticket == 0) {
      if (listed.id.value != 0) return "the list has a block for an entry without a message";
      continue;
    }
    if (ticket > end || end - (ticket - 1) > entries || (ticket - 1) % entries != index) {
      return "an entry has a message that belongs in another entry";
    }
    const std::uint64_t block = load_relaxed(entry_at(index).block);
    if (block != 0 && memory::pack(listed) != block) return "the list has another block than the entry";
    if (block != 0 && !arena.blocks().is_current(listed)) return "a message's block is free";
    if (block == 0 && listed.id.value != 0) return "the list has a block for an entry with a small message";
  }
  for (std::uint64_t ticket = end - std::min(end, entries); ticket < end; ++ticket) {
    const Entry& at = entry_at(ticket % entries);
    const auto& after = ticket + 1 == end ? header.put_bytes : entry_at((ticket + 1) % entries).before;
    if (load_relaxed(after) < load_relaxed(at.before) + load_relaxed(at.bytes))
      return "the byte count of an entry is wrong";
  }
  const Cursors::Slowest slowest = cursors.slowest(Readers::kBlocking);
  const std::uint64_t needed = std::min(slowest.position, end - std::min(end, header.history));
  for (std::uint64_t ticket = needed; ticket < end; ++ticket) {
    if (load_relaxed(entry_at(ticket % entries).ticket) != ticket + 1)
      return "a message that a reader or the history needs was overwritten";
  }
  return "";
}

inline std::string check_ring(const Ring& ring) {
  return check_ring(*ring.arena(), ring.block());
}

}  // namespace shmtree::broadcast
