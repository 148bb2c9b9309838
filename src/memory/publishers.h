// The processes that publish for many readers, or do anything else that others wait for. A control block has a word for
// each participant's slot, which names such a process from its first publication until it leaves. Readers recognise a
// dead one by its identity.
//
// Thread safety: any thread, without locks. An object only refers to the shared words.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "memory/arena.h"
#include "memory/deaths.h"

namespace shmtree::memory {

struct PublisherWords {
  // A DeathWord has the pid, and the Failure of a process that has failed.
  std::atomic<std::uint64_t> by_slot[kMaxParticipants];  // DeathWord (low half), identity; 0: none
};

class Publishers {
 public:
  Publishers(Participants& participants, PublisherWords& words) noexcept : participants_(participants), words_(words) {}

  // Records that this process publishes, and removes the words of dead processes. Returns true if it did not publish
  // before.
  bool enter(Identity me) noexcept;
  // Records that this process no longer publishes, or its exit_failure(). Returns true if it published.
  bool leave() noexcept;
  // Returns the living processes that publish. May throw std::bad_alloc.
  std::vector<int> pids() const;
  // Succeeds while a living process publishes. Otherwise returns kPeerDied, with the pids, if publishers were killed or
  // failed. Otherwise returns kClosed if `begun` says that a process has published. `did` is the verb for the error
  // message.
  Status check(bool begun, const char* did = "published") const;

 private:
  // True if the process of this word lives and has not failed.
  bool may_publish(std::uint64_t word) const noexcept;

  Participants& participants_;
  PublisherWords& words_;
};

}  // namespace shmtree::memory
