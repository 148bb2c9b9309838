// Deaths of other processes, for calls that do not wait: whoever waits looks anyway.
#pragma once

#include <cstdint>

#include "memory/arena.h"
#include "platform/wait_policy.h"

namespace shmtree::memory {

// A recovery on the way of such a call. A stopped process may stand in the way: then things are as they were.
inline Status recover_in_passing(Arena& arena, platform::WaitHooks* hooks = nullptr) {
  return arena.reconcile({platform::Deadline::after_ns(platform::wait_policy::kRecoverInPassingNs), hooks});
}

// Looks who has died, when nobody has for `interval_ns`, and tidies up; true when there was something to be tidied up.
inline bool look_for_dead(Arena& arena, std::int64_t interval_ns, platform::WaitHooks* hooks = nullptr) {
  return arena.participants().check(interval_ns) && recover_in_passing(arena, hooks).ok();
}

}  // namespace shmtree::memory
