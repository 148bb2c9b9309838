// Deaths of other processes, for calls that wait, and for those that do not.
#pragma once

#include <cstdint>

#include "memory/arena.h"
#include "platform/wait_policy.h"

namespace shmtree::memory {

// A recovery on the way of a call that does not wait. A stopped process may stand in the way: then things are as they
// were.
inline Status recover_in_passing(Arena& arena, platform::WaitHooks* hooks = nullptr) {
  return arena.reconcile({platform::Deadline::after_ns(platform::wait_policy::kRecoverInPassingNs), hooks});
}

// For a call that does not wait: looks who has died, when nobody has for `interval_ns`, and tidies up; true when there
// was something to be tidied up.
inline bool look_for_dead(Arena& arena, std::int64_t interval_ns, platform::WaitHooks* hooks = nullptr) {
  return arena.participants().check(interval_ns) && recover_in_passing(arena, hooks).ok();
}

// For a call that waits: looks who has died, when nobody has for `interval_ns`, and recovers. True if it did.
inline Result<bool> recover_from_deaths(Arena& arena, std::int64_t interval_ns, const platform::WaitContext& wait) {
  if (!arena.participants().check(interval_ns)) return false;
  Status repaired = arena.reconcile(wait);
  if (!repaired) return std::move(repaired).error();
  return true;
}

}  // namespace shmtree::memory
