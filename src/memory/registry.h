// The arenas of this process.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "memory/arena.h"

namespace shmtree::memory {

class Registry {
 public:
  static std::shared_ptr<Arena> find(const unsigned char uuid[16]);
  // Adds `arena`, unless the process has one of this uuid already: then that one is returned instead.
  static std::shared_ptr<Arena> insert(const std::shared_ptr<Arena>& arena);
  static void erase(const Arena* arena) noexcept;

  // For fork handlers, which run with every leaf mutex held: visit(arena, whether it has no user left and is on its way
  // out).
  template <class Visit>
  static void for_each_unlocked(Visit visit) noexcept {
    for (const Entry& entry : state().arenas) visit(*entry.raw, entry.arena.expired());
  }
  static std::vector<std::shared_ptr<Arena>> all() noexcept;
  static void install_fork_handlers() noexcept;
  static void make_room_for_children() noexcept;
  // In a child of a fork that ran no handlers: nothing of the parent's is ours.
  static void forget_parent() noexcept;

 private:
  struct Entry {
    Arena* raw;
    std::weak_ptr<Arena> arena;
  };
  static std::shared_ptr<Arena> find_locked(const unsigned char uuid[16]);
  struct State {
    platform::LeafMutex mutex;
    std::vector<Entry> arenas;
  };
  static std::shared_ptr<Arena> find_unlocked(const unsigned char uuid[16]);
  // Never destroyed: views may outlive every static object.
  static State& state() noexcept;
};

}  // namespace shmtree::memory
