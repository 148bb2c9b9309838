// Checks the invariants of a ring, for tests.
#include "broadcast/ring.h"

namespace shmtree::broadcast {

using namespace platform;
using memory::BlockRef;

std::string Ring::check() const {
  const std::uint64_t end = tail();
  if (load_relaxed(header().putting) != 0) return "a put was interrupted";
  for (std::uint64_t index = 0; index < entries_; ++index) {
    const std::uint64_t ticket = load_relaxed(entry_at(index).ticket);
    const BlockRef listed = references().at(index);
    if (ticket == 0) {
      if (listed.id.value != 0) return "the list has a block for an entry without a message";
      continue;
    }
    if (ticket > end || end - (ticket - 1) > entries_ || (ticket - 1) % entries_ != index) {
      return "an entry has a message that belongs in another entry";
    }
    const std::uint64_t block = load_relaxed(entry_at(index).block);
    if (block != 0 && memory::pack(listed) != block) return "the list has another block than the entry";
    if (block != 0 && !arena_->blocks().is_current(listed)) return "a message's block is free";
    if (block == 0 && listed.id.value != 0) return "the list has a block for an entry with a small message";
  }
  for (std::uint64_t ticket = end - std::min(end, entries_); ticket < end; ++ticket) {
    const Entry& at = entry(ticket);
    const auto& after = ticket + 1 == end ? header().put_bytes : entry(ticket + 1).before;
    if (load_relaxed(after) < load_relaxed(at.before) + load_relaxed(at.bytes))
      return "the byte count of an entry is wrong";
  }
  const Cursors::Slowest now = cursors().slowest(Readers::kBlocking);
  for (std::uint64_t ticket = std::min(now.position, end - std::min(end, history_)); ticket < end; ++ticket) {
    if (load_relaxed(entry(ticket).ticket) != ticket + 1)
      return "a message that a reader or the history needs was overwritten";
  }
  return "";
}

}  // namespace shmtree::broadcast
