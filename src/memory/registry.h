// The arenas of this process, and what is done with all of them around a fork.
//
// Invariants:
//   - An entry's object is there while the mutex is held, since its destructor ends with erase(). A reference to it is
//     taken under the mutex only to be returned: dropping the last one would want the mutex again.
//   - The list is never destroyed: views may outlive every static object.
#pragma once

#include <memory>
#include <vector>

#include "memory/arena.h"

namespace shmtree::memory {

class Registry {
 public:
  static std::shared_ptr<Arena> find(const unsigned char uuid[16]);
  // Adds `arena`, unless the process has one of this uuid already: then that one is returned instead.
  static std::shared_ptr<Arena> insert(const std::shared_ptr<Arena>& arena);
  static void erase(const Arena* arena) noexcept;
  // Once is enough; more do nothing.
  static void install_fork_handlers() noexcept;

 private:
  struct Entry {
    Arena* raw;
    std::weak_ptr<Arena> arena;
  };
  struct State {
    platform::LeafMutex mutex;
    std::vector<Entry> arenas;
  };
  static State& state() noexcept;
  static std::shared_ptr<Arena> find_locked(const unsigned char uuid[16]);
  static std::vector<std::shared_ptr<Arena>> all() noexcept;

  // For fork handlers, which run with every leaf mutex held: visit(arena, whether it has no user left and is on its way
  // out).
  template <class Visit>
  static void for_each_unlocked(Visit visit) noexcept {
    for (const Entry& entry : state().arenas) visit(*entry.raw, entry.arena.expired());
  }
};

}  // namespace shmtree::memory
