// The cursors of a Broadcast: which one is behind all others, and which ones have no living process. A Latest has none.
//
// Thread safety: an object is a name for the words; any thread, without locks.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "broadcast/layout.h"

namespace shmtree::broadcast {

// Readers among which to search.
enum class Readers { kAll, kBlocking };

class Cursors {
 public:
  // `most`: the places that the header has for them.
  Cursors(memory::Arena& arena, RingHeader& header, std::uint64_t most) noexcept
      : arena_(arena), header_(header), most_(static_cast<std::uint32_t>(most)) {}

  memory::Arena& arena() const noexcept { return arena_; }
  // Those that were ever used.
  std::uint32_t used() const noexcept { return std::min(platform::load_acquire(header_.cursors_high), most_); }
  Cursor& at(std::uint32_t number) const noexcept { return cursors_of(header_)[number]; }
  Owner owner_of(std::uint32_t number) const noexcept { return unpack_owner(platform::load_acquire(at(number).owner)); }
  // Number of cursors in use, by living and dead processes.
  std::uint32_t count() const noexcept;
  // Under the ring's lock. Returns the number of a free cursor, or `most` if there is none.
  std::uint32_t find_free() const noexcept;

  struct Slowest {
    std::uint64_t position;
    Identity reader;  // nobody: there is none
    std::uint32_t number = 0;
  };
  // The cursor that is behind all others of these readers; at `tail` if there is none.
  Slowest slowest(Readers among) const noexcept;
  // Those of whom nobody lives that reads, or may begin to, hold nobody up. True when there were some.
  bool drop_dead() const noexcept;
  // Whether a process lives that has a subscription which nobody has claimed, or has one in transit.
  bool is_held(const Cursor& cursor) const noexcept;
  // The processes that have the cursor: who has claimed it, else all who may. May throw std::bad_alloc.
  std::vector<int> pids_of(std::uint32_t number) const;
  // The same in words, with "has" or "have".
  std::string name(std::uint32_t number) const;

 private:
  // Calls visit(slot) for those that hold the subscription and live.
  template <class Visit>
  void for_each_holder(const Cursor& cursor, Visit visit) const;
  // Calls visit(identity) for the givers of its transfers that count.
  template <class Visit>
  void for_each_giver(const Cursor& cursor, Visit visit) const;

  memory::Arena& arena_;
  RingHeader& header_;
  const std::uint32_t most_;
};

}  // namespace shmtree::broadcast
