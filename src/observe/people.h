// Who takes part in an arena, as seen from outside.
//
// A participant's own word for its pid is one of its own PID namespace. It is shown under the number that it has here
// only where exactly one process has both the arena open and that number in its own namespace; otherwise it is out of
// sight, and no guess is made.
//
// Thread safety: a value; not for two threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "observe/arena_file.h"
#include "platform/other_process.h"
#include "shmtree/observe.h"

namespace shmtree::observer {

using Slot = std::uint32_t;

// A process that has an arena's file open, by its number here.
struct Process {
  int pid = 0;
  platform::ProcessStatus status{};
};

// As users have times.
constexpr double seconds_of(std::int64_t ns) noexcept {
  return static_cast<double>(ns) / 1e9;
}

class People {
 public:
  People(const ArenaFile& file, const memory::ArenaHeader& header, const std::vector<Process>& processes);

  // Every slot in use, also of the dead, by slot.
  const std::vector<ObservedParticipant>& all() const noexcept { return people_; }
  bool lives(Slot slot) const noexcept {
    const auto place = find(slot);
    return place && people_[*place].alive;
  }
  bool is_alive(memory::Identity identity) const noexcept;
  // As it is seen from here, 0 out of sight; of the dead, who are in nobody's sight, as they said.
  int pid_of(Slot slot) const noexcept;
  std::vector<int> pids_of(const std::vector<Slot>& slots) const;
  // The owner of a lock's word, dead or alive; none when it is free or names nobody.
  std::optional<int> owner_of_lock(std::uint32_t word) const noexcept;
  std::vector<Slot> living(const memory::ParticipantSet& set) const;

 private:
  // Its place in people_.
  std::optional<std::size_t> find(Slot slot) const noexcept;
  std::vector<ObservedWait> waits_of(const memory::Participant& said, std::int64_t now_ns) const;

  std::vector<ObservedParticipant> people_;
  // Of each of them.
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> generations_;
};

}  // namespace shmtree::observer
