// A list of all objects of one type in this process, so that threads that need the same object share it.
//
// Invariant: the object of an entry exists while the mutex is held, since its destructor calls erase() last. Under the
// mutex, a reference to an object is only taken to be returned. Dropping the last reference there would lock the mutex
// again.
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
  // Returns the object for which is_it(object) is true, or null if there is none.
  template <class IsIt>
  std::shared_ptr<T> find(IsIt is_it) {
    const std::lock_guard guard(mutex_);
    return find_locked(is_it);
  }
  // Adds `object` and returns it. If there is an object for which is_it(object) is true, returns that object instead.
  template <class IsIt>
  std::shared_ptr<T> insert(const std::shared_ptr<T>& object, IsIt is_it) {
    const std::lock_guard guard(mutex_);
    if (auto existing = find_locked(is_it)) return existing;
    entries_.push_back(Entry{object.get(), object});
    return object;
  }
  void erase(const T* object) noexcept {
    const std::lock_guard guard(mutex_);
    std::erase_if(entries_, [object](const Entry& entry) { return entry.raw == object; });
  }
  // Returns all objects; an empty list if there is no memory for the list.
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
  // For fork handlers, which run with every fork-safe mutex held. Calls visit(object, is_expired) for each object.
  // `is_expired` is true if the object has no user left and is about to be destroyed.
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
