// The participants of an arena, observed from outside.
//
// A participant records the pid that it has in its own PID namespace. It is reported with its pid in our namespace only
// if exactly one process has the arena open and has that pid in its own namespace. Otherwise the process counts as not
// visible, and its pid is 0.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "observe/arena_file.h"
#include "platform/other_process.h"
#include "shmtree/base/observe.h"

namespace shmtree::observer {

using Slot = std::uint32_t;

// A process that has an arena's file open. `pid` is its pid in our PID namespace.
struct Process {
  int pid = 0;
  platform::ProcessStatus status{};
};

// Converts to seconds, the unit of the public API.
constexpr double seconds_of(std::int64_t ns) noexcept {
  return static_cast<double>(ns) / 1e9;
}

class ObservedParticipants {
 public:
  ObservedParticipants(const ArenaFile& file, const memory::ArenaHeader& header, const std::vector<Process>& processes);

  // All participants in slots in use, including dead ones, sorted by slot.
  const std::vector<ObservedParticipant>& all() const noexcept { return participants_; }
  bool lives(Slot slot) const noexcept {
    const auto index = find(slot);
    return index && participants_[*index].alive;
  }
  bool is_alive(memory::Identity identity) const noexcept;
  // Returns the pid in our namespace, or 0 if the process is out of sight. For a dead process, returns the pid that it
  // recorded.
  int pid_of(Slot slot) const noexcept;
  std::vector<int> pids_of(const std::vector<Slot>& slots) const;
  // Returns the pid of the owner of a lock word, dead or alive. nullopt if the lock is free or its owner is not a
  // participant.
  std::optional<int> owner_of_lock(std::uint32_t word) const noexcept;
  std::vector<Slot> living(const memory::ParticipantSet& set) const;

 private:
  // Returns the index of the participant in participants_.
  std::optional<std::size_t> find(Slot slot) const noexcept;
  std::vector<ObservedWait> waits_of(const memory::Participant& said, std::int64_t now_ns) const;

  std::vector<ObservedParticipant> participants_;
  // Parallel to participants_.
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> generations_;
};

}  // namespace shmtree::observer
