#include "memory/registry.h"

#include <cstring>
#include <mutex>
#include <new>

namespace shmtree::memory {

using namespace platform;

Registry::State& Registry::state() noexcept {
  alignas(State) static unsigned char place[sizeof(State)];
  static State* const state = new (place) State;
  return *state;
}

std::shared_ptr<Arena> Registry::find_locked(const unsigned char uuid[16]) {
  for (const Entry& entry : state().arenas) {
    if (std::memcmp(entry.raw->uuid(), uuid, 16) != 0) continue;
    if (auto arena = entry.arena.lock()) return arena;
  }
  return nullptr;
}

std::shared_ptr<Arena> Registry::find(const unsigned char uuid[16]) {
  const std::lock_guard guard(state().mutex);
  return find_locked(uuid);
}

std::shared_ptr<Arena> Registry::insert(const std::shared_ptr<Arena>& arena) {
  const std::lock_guard guard(state().mutex);
  if (auto known = find_locked(arena->uuid())) return known;
  state().arenas.push_back(Entry{arena.get(), arena});
  return arena;
}

void Registry::erase(const Arena* arena) noexcept {
  const std::lock_guard guard(state().mutex);
  std::erase_if(state().arenas, [arena](const Entry& entry) { return entry.raw == arena; });
}

// Those that there is no memory to list are left out.
std::vector<std::shared_ptr<Arena>> Registry::all() noexcept {
  std::vector<std::shared_ptr<Arena>> arenas;
  const std::lock_guard guard(state().mutex);
  try {
    arenas.reserve(state().arenas.size());
  } catch (const std::bad_alloc&) {
    return arenas;
  }
  for (const Entry& entry : state().arenas) {
    if (auto arena = entry.arena.lock()) arenas.push_back(std::move(arena));
  }
  return arenas;
}

void Registry::install_fork_handlers() noexcept {
  static constinit ForkHandlers handlers{
      .first =
          [] {
            for (const auto& arena : all()) {
              if (arena->current_identity() != kNobody) arena->make_room_for_child();
            }
          },
      .prepare = [] { for_each_unlocked([](Arena& arena, bool leaving) { arena.before_fork(leaving); }); },
      .parent = [] { for_each_unlocked([](Arena& arena, bool) { arena.participants_.after_fork_in_parent(); }); },
      .child = [] { for_each_unlocked([](Arena& arena, bool leaving) { arena.after_fork_in_child(leaving); }); },
      .orphan = [] { for_each_unlocked([](Arena& arena, bool) { arena.forget_parent(); }); },
  };
  add_fork_handlers(handlers);
}

}  // namespace shmtree::memory
