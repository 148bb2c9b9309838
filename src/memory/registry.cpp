#include "memory/registry.h"

#include "platform/never_destroyed.h"

namespace shmtree::memory {

WeakRegistry<Arena>& Registry::arenas() noexcept {
  return platform::never_destroyed<WeakRegistry<Arena>>();
}

void Registry::install_fork_handlers() noexcept {
  static constinit platform::ForkHandlers handlers{
      .first =
          [] {
            for (const auto& arena : arenas().all()) {
              if (arena->current_identity() != kNobody) arena->make_room_for_child();
            }
          },
      .prepare = [] { arenas().for_each_unlocked([](Arena& arena, bool leaving) { arena.before_fork(leaving); }); },
      .parent =
          [] { arenas().for_each_unlocked([](Arena& arena, bool) { arena.participants_.after_fork_in_parent(); }); },
      .child =
          [] { arenas().for_each_unlocked([](Arena& arena, bool leaving) { arena.after_fork_in_child(leaving); }); },
      .orphan = [] { arenas().for_each_unlocked([](Arena& arena, bool) { arena.forget_parent(); }); },
  };
  arenas();  // made now, since the handlers run while every fork-safe mutex is held
  platform::add_fork_handlers(handlers);
}

}  // namespace shmtree::memory
