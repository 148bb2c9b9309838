// Wraps poll_for_deaths() and its like (memory/arena.h) and releases the GIL during the recovery.
#pragma once

#include "bindings/cpython/gil.h"
#include "memory/arena.h"

namespace shmtree::python {

using platform::wait_policy::kLongPollIntervalNs;

inline bool notice_deaths(memory::Arena& arena, std::int64_t interval_ns) {
  if (!arena.participants().check(interval_ns)) return false;
  const WithoutGil unlocked;
  return memory::recover_in_passing(arena).ok();
}

}  // namespace shmtree::python
