// The cursors of a Broadcast: who is behind all others, and who is dead.
//
// Thread safety: an object is a name for the words; any thread, without locks.
#pragma once

#include <algorithm>

#include "broadcast/layout.h"

namespace shmtree::broadcast {

class Cursors {
 public:
  Cursors(memory::Participants& participants, BroadcastHeader& header) noexcept
      : participants_(participants), header_(header) {}

  // Those that were ever used.
  std::uint32_t used() const noexcept { return std::min(platform::load_acquire(header_.cursors_high), kMostCursors); }
  Cursor& at(std::uint32_t number) const noexcept { return header_.cursors[number]; }
  // How many readers have, of the living and the dead.
  std::uint32_t count() const noexcept;

  struct Slowest {
    std::uint64_t position;
    Identity reader;  // nobody: there is none
  };
  // The one behind all that block, or behind all; at `tail` when there is none.
  Slowest slowest(bool of_all) const noexcept;
  // Those of the dead hold nobody up. True when there were some.
  bool drop_dead() const noexcept;

 private:
  memory::Participants& participants_;
  BroadcastHeader& header_;
};

}  // namespace shmtree::broadcast
