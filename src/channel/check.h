// The invariants of an arena and of all channels in it, as a function.
#pragma once

#include <string>

#include "memory/arena.h"

namespace shmtree::channel {

// Walks the whole arena and names the first invariant that does not hold; empty when all do: those of Arena::check(),
// and that each channel's messages, records and counts agree, and that every block in use is kept by somebody. Nobody
// else may be working in the arena, and what the dead had must have been reconciled. For tests.
std::string check(memory::Arena& arena);

}  // namespace shmtree::channel
