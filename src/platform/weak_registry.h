// The objects of one type that this process has, of which each is found by all of its users.
//
// Invariant: an entry's object is there while the mutex is held, since its destructor ends with erase(). A reference to
// it is taken under the mutex only to be returned: dropping the last one would want the mutex again.
//
// Thread safety: any thread.
#pragma once

#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "platform/fork.h"

namespace shmtree::platform {

template <class T>
class WeakRegistry {
 public:
  // The one of which is_it(object) is true; null when there is none.
  template <class IsIt>
  std::shared_ptr<T> find(IsIt is_it) {
    const std::lock_guard guard(mutex_);
    return find_locked(is_it);
  }
  // Adds `object`, unless there is one of which is_it(object) is true: then that one is returned instead.
  template <class IsIt>
  std::shared_ptr<T> insert(const std::shared_ptr<T>& object, IsIt is_it) {
    const std::lock_guard guard(mutex_);
    if (auto known = find_locked(is_it)) return known;
    entries_.push_back(Entry{object.get(), object});
    return object;
  }
  void erase(const T* object) noexcept {
    const std::lock_guard guard(mutex_);
    std::erase_if(entries_, [object](const Entry& entry) { return entry.raw == object; });
  }
  // None when there is no memory to list them.
  std::vector<std::shared_ptr<T>> all() noexcept {
    std::vector<std::shared_ptr<T>> objects;
    const std::lock_guard guard(mutex_);
    try {
      objects.reserve(entries_.size());
    } catch (const std::bad_alloc&) {
      return objects;
    }
    for (const Entry& entry : entries_) {
      if (auto object = entry.object.lock()) objects.push_back(std::move(object));
    }
    return objects;
  }
  // For fork handlers, which run with every fork-safe mutex held: visit(object, whether it has no user left and is on
  // its way out).
  template <class Visit>
  void for_each_unlocked(Visit visit) noexcept {
    for (const Entry& entry : entries_) visit(*entry.raw, entry.object.expired());
  }

 private:
  struct Entry {
    T* raw;
    std::weak_ptr<T> object;
  };
  template <class IsIt>
  std::shared_ptr<T> find_locked(IsIt is_it) {
    for (const Entry& entry : entries_) {
      if (!is_it(*entry.raw)) continue;
      if (auto object = entry.object.lock()) return object;
    }
    return nullptr;
  }

  ForkSafeMutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace shmtree::platform
