// The processes that publish for many readers, or do anything else that others wait for. A control block has a word for
// each participant's slot, which names such a process from its first publication until it leaves. Readers recognise a
// dead one by its identity. Until something was published, an object that readers wait for may also name the processes
// that could be the first to publish.
//
// Thread safety: any thread, without locks. An object only refers to the shared words.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "memory/deaths.h"
#include "memory/participants.h"

namespace shmtree::memory {

struct PublisherWords {
  // A DeathWord has the pid, and the Failure of a process that has failed.
  std::atomic<std::uint64_t> by_slot[kMaxParticipants];  // DeathWord (low half), identity, PublisherRole; 0: none
};

// Role of a process that has a word.
enum class PublisherRole : std::uint32_t {
  kPublishes = 0,  // has published
  kMade = 1,       // made the object
  kOpened = 2,     // has opened the object
  kReads = 3,      // waits for the first publication
};

constexpr PublisherRole role_of(std::uint64_t word) noexcept {
  return static_cast<PublisherRole>(word >> 62);
}

constexpr Identity identity_of(std::uint64_t word) noexcept {
  return static_cast<Identity>(word >> 32 & 0x3fffffff);
}
constexpr DeathWord death_of(std::uint64_t word) noexcept {
  return static_cast<DeathWord>(static_cast<std::uint32_t>(word));
}

class Publishers {
 public:
  Publishers(Participants& participants, PublisherWords& words) noexcept : participants_(participants), words_(words) {}

  // Records that this process publishes, and removes the words of dead processes.
  void enter(Identity me) noexcept;
  // Records the role of this process, which is not kPublishes. Returns true if that is new. Does nothing if the process
  // publishes or made the object, or if its slot still has the word of a killed process, which readers have to see.
  bool attach(PublisherRole as) noexcept;
  // Removes the word of this process, or records the failure there. Returns true if it had one.
  bool leave(Failure failure = exit_failure()) noexcept;
  // Returns the living processes that publish. May throw std::bad_alloc.
  std::vector<int> pids() const;
  // Succeeds while a living process publishes. kPeerDied, with the pids, if publishers were killed or failed and none
  // lives; `did` is the verb for its message. Otherwise `stream` decides.
  enum class Stream {
    kEndless,   // succeeds
    kBegun,     // kClosed
    kNotBegun,  // kClosed. Those that made or opened the object count as publishers. This process counts only if none
                // was killed, since it is the one that waits.
  };
  Status check(Stream stream, const char* did) const;
  // Returns true if the living process of that slot has a word.
  bool has_word(std::uint32_t slot) const noexcept;

 private:
  // True if the process of this word lives and has not failed.
  bool may_publish(std::uint64_t word) const noexcept;

  Participants& participants_;
  PublisherWords& words_;
};

}  // namespace shmtree::memory
