// Who waits in a call of a buffer at present, for who asks how it stands.
#pragma once

#include <vector>

#include "replay/store.h"

namespace shmtree::replay {

// Process ids in order, each once however many of its threads wait; none of the dead.
struct Waiters {
  std::vector<int> adding{};   // for others to draw, as the rate limit wants
  std::vector<int> drawing{};  // for others to add
};

Waiters waiters_of(const Store& store);

}  // namespace shmtree::replay
