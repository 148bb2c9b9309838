// Which processes have which arenas' files open.
#pragma once

#include <string>
#include <vector>

#include "observe/people.h"

namespace shmtree::observer {

// One file of an arena, or what was called so and could not be read.
struct OpenArena {
  platform::FileId id{};
  platform::UniqueFd fd{};  // for reading alone; invalid where no process let us have it
  std::string refused{};
  std::vector<ObservedOpener> openers{};  // one for each process
  std::vector<Process> processes{};       // the same
};

// All that processes of this user have, once each.
std::vector<OpenArena> find_open_arenas();

}  // namespace shmtree::observer
