// The cursors of a Broadcast. Finds the slowest cursor, and the cursors without a living process. A Latest has no
// cursors.
//
// Thread safety: any thread, without locks. An object only refers to the shared words.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "broadcast/layout.h"
#include "memory/arena.h"
#include "platform/dcheck.h"

namespace shmtree::broadcast {

// Readers among which to search.
enum class Readers { kAll, kBlocking };

class Cursors {
 public:
  // `most`: number of cursors in the header.
  Cursors(memory::Arena& arena, RingHeader& header, std::uint64_t most) noexcept
      : arena_(arena), header_(header), most_(static_cast<std::uint32_t>(most)) {}

  memory::Arena& arena() const noexcept { return arena_; }
  // Number of cursors that were ever used.
  std::uint32_t used() const noexcept { return std::min(platform::load_acquire(header_.cursors_high), most_); }
  Cursor& at(std::uint32_t number) const noexcept {
    SHMTREE_DCHECK(number < most_);
    return cursors_of(header_)[number];
  }
  Owner owner_of(std::uint32_t number) const noexcept { return unpack_owner(platform::load_acquire(at(number).owner)); }
  // Number of cursors in use, by living and dead processes.
  std::uint32_t count() const noexcept;
  // Under the ring's lock. Returns the number of a free cursor, or `most` if there is none.
  std::uint32_t find_free() const noexcept;

  struct Slowest {
    std::uint64_t position;
    Identity reader;  // kNoIdentity: there is none
    std::uint32_t number = 0;
  };
  // The cursor that is furthest behind among these readers. Its position is `tail` if there are no such readers.
  Slowest slowest(Readers among) const noexcept;
  // Frees the cursors for which no living process reads or may begin to read. Returns true if there were any.
  bool drop_dead() const noexcept;
  // Returns true if a living process holds this unclaimed subscription, or has it in transit.
  bool is_held(const Cursor& cursor) const noexcept;
  // Returns the pid of the process that has claimed the cursor. If none has, returns the pids of all processes that may
  // claim it. May throw std::bad_alloc.
  std::vector<int> pids_of(std::uint32_t number) const;
  // Returns these pids as text for an error: "process 5 has", "processes 5 and 6 have".
  std::string name(std::uint32_t number) const;

 private:
  // Calls visit(slot) for each living process that holds the subscription.
  template <class Visit>
  void for_each_holder(const Cursor& cursor, Visit visit) const;
  // Calls visit(identity) for the giver of each transfer that keeps the subscription alive.
  template <class Visit>
  void for_each_giver(const Cursor& cursor, Visit visit) const;

  memory::Arena& arena_;
  RingHeader& header_;
  const std::uint32_t most_;
};

}  // namespace shmtree::broadcast
