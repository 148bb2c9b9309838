// Finds the processes that have arena files open.
#pragma once

#include <vector>

#include "observe/observed_participants.h"

namespace shmtree::observer {

// One file with the name of an arena file, and the processes that have it open. Each process is listed with one
// descriptor.
struct OpenArena {
  platform::FileId id{};
  std::vector<ObservedOpener> users{};      // opened for reading and writing
  std::vector<ObservedOpener> observers{};  // opened read-only
  std::vector<Process> processes{};         // status of the users

  // Returns the users, or the observers if there are none. Other observers come and go, so they are hidden while the
  // arena is in use.
  const std::vector<ObservedOpener>& openers() const noexcept { return users.empty() ? observers : users; }
};

// Returns all arena files that processes of this user have open, once each. Keeps no descriptor open, because there may
// be more files than this process may open. Fails if it has no free descriptor.
Result<std::vector<OpenArena>> find_open_arenas();

// Adds a process of our PID namespace that has opened the arena since the search. Returns false if no such process has
// that pid.
Result<bool> add_newcomer(OpenArena& arena, int pid);

// Opens the arena read-only. Fails with Code::kNotFound if no process has it open any more.
Result<platform::UniqueFd> open_arena(const OpenArena& arena);

}  // namespace shmtree::observer
