// Who publishes to many readers, or does anything else that others wait for: a word for each participant's slot, in a
// control block. A process is in there from its first publication until it lets go. One that is dead is known by its
// identity; readers look for themselves.
//
// Thread safety: an object is a name for the words; any thread, without locks.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "memory/arena.h"

namespace shmtree::memory {

struct PublisherWords {
  std::atomic<std::uint64_t> by_slot[kMaxParticipants];  // pid (low half), identity; 0: none
};

class Publishers {
 public:
  Publishers(Participants& participants, PublisherWords& words) noexcept : participants_(participants), words_(words) {}

  // This process publishes from now on, and readers wait for it in place of the dead. True when it did not before.
  bool enter(Identity me) noexcept;
  // It does not any more. True when it did.
  bool leave() noexcept;
  // The processes that do, and live. May throw std::bad_alloc.
  std::vector<int> pids() const;
  // kPeerDied, with their pids, when some of those who did were killed, and nobody does any more. kClosed when none was
  // killed, and `begun` says that somebody did. `did` is what they did, for the message.
  Status check(bool begun, const char* did = "published") const;

 private:
  Participants& participants_;
  PublisherWords& words_;
};

}  // namespace shmtree::memory
