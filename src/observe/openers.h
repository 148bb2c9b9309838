// Which processes have which arenas' files open.
#pragma once

#include <vector>

#include "observe/people.h"

namespace shmtree::observer {

// One file of an arena, or of what is called so. Of several descriptors of a process, one is here.
struct OpenArena {
  platform::FileId id{};
  std::vector<ObservedOpener> users{};      // may write to it
  std::vector<ObservedOpener> observers{};  // may not
  std::vector<Process> processes{};         // of the users

  // Others that look come and go: of no interest while somebody uses the arena.
  const std::vector<ObservedOpener>& openers() const noexcept { return users.empty() ? observers : users; }
};

// All that processes of this user have, once each. Keeps no descriptor of them: there may be more than this process
// may have. An error when it has none to look with.
Result<std::vector<OpenArena>> find_open_arenas();

// Adds a process of our PID namespace that has the arena open by now, and was not there at the search. False when there
// is none of that number.
Result<bool> add_newcomer(OpenArena& arena, int pid);

// For reading alone. Code::kNotFound when nobody has it any more.
Result<platform::UniqueFd> open_arena(const OpenArena& arena);

}  // namespace shmtree::observer
