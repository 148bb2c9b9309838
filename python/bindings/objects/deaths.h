// Deaths of other processes, for calls that say how things are without waiting: whoever waits looks anyway.
#pragma once

#include "bindings/cpython/gil.h"
#include "memory/arena.h"
#include "platform/wait_policy.h"

namespace shmtree::python {

using platform::wait_policy::kLookedLatelyNs;

// Looks who has died, when nobody has for `interval_ns`, and tidies up; true when there was something to be tidied up.
// A stopped process may stand in the way: then things are as they were.
inline bool notice_deaths(memory::Arena& arena, std::int64_t interval_ns) {
  if (!arena.participants().check(interval_ns)) return false;
  const WithoutGil unlocked;
  return arena
      .reconcile(platform::WaitContext{platform::Deadline::after_ns(platform::wait_policy::kRecoverInPassingNs)})
      .ok();
}

}  // namespace shmtree::python
