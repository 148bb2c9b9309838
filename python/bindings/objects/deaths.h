// Deaths of other processes, for calls that say how things are without waiting: whoever waits looks anyway.
#pragma once

#include "bindings/cpython/gil.h"
#include "memory/arena.h"

namespace shmtree::python {

constexpr std::int64_t kLookedLatelyNs = 250'000'000;

// Looks who has died, when nobody has for `interval_ns`, and tidies up; true when there was something to be tidied up.
// A stopped process may stand in the way: then things are as they were.
inline bool notice_deaths(memory::Arena& arena, std::int64_t interval_ns) {
  constexpr std::int64_t kMostNs = 100'000'000;
  if (!arena.participants().check(interval_ns)) return false;
  const WithoutGil unlocked;
  return arena.reconcile(platform::WaitContext{platform::Deadline::after_ns(kMostNs)}).ok();
}

}  // namespace shmtree::python
