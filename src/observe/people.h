// Who takes part in an arena, as seen from outside.
//
// A participant's own word for its pid is one of its own PID namespace. It is shown under the number that it has here
// only where exactly one process has both the arena open and that number in its own namespace; otherwise it is out of
// sight, and no guess is made.
//
// Thread safety: a value; not for two threads at once.
#pragma once

#include <vector>

#include "observe/arena_file.h"
#include "observe/infos.h"

namespace shmtree::observe {

// A process that has an arena's file open: its number here, and in its own PID namespace.
struct Process {
  int pid = 0;
  int pid_inside = 0;
};

class People {
 public:
  People(const ArenaFile& file, const memory::ArenaHeader& header, const std::vector<Process>& processes);

  // Every slot in use, also of the dead, by slot.
  const std::vector<ParticipantInfo>& all() const noexcept { return people_; }
  bool lives(Slot slot) const noexcept {
    const ParticipantInfo* found = find(slot);
    return found != nullptr && found->alive;
  }
  bool is_alive(memory::Identity identity) const noexcept;
  // As it is seen from here; 0 out of sight.
  int pid_of(Slot slot) const noexcept {
    const ParticipantInfo* found = find(slot);
    return found == nullptr ? 0 : found->pid;
  }
  // The owner of a lock's word, dead or alive; none when it is free or names nobody.
  std::optional<Slot> owner_of_lock(std::uint32_t word) const noexcept;
  std::vector<Slot> living(const memory::ParticipantSet& set) const;

 private:
  const ParticipantInfo* find(Slot slot) const noexcept;
  std::vector<WaitInfo> waits_of(const memory::Participant& said, std::int64_t now_ns) const;
  std::uint32_t generation_of(const ParticipantInfo& of) const noexcept {
    return generations_[static_cast<std::size_t>(&of - people_.data())];
  }

  std::vector<ParticipantInfo> people_;
  std::vector<std::uint32_t> generations_;  // of each of them
};

}  // namespace shmtree::observe
