// An object of type T that each thread keeps from one call to the next.
//
// Calls may also run after the thread's variables were destroyed: in destructors of static objects, and in those of
// thread_local objects that were created before the thread's first call. In this case the object lives as long as the
// OfThread.
#pragma once

#include <utility>

namespace shmtree::platform {

template <class T>
class OfThread {
 public:
  OfThread() : object_(kept_.object != nullptr ? kept_.object : make()) {}
  ~OfThread() {
    if (object_ != kept_.object) [[unlikely]]
      delete object_;
  }
  OfThread(const OfThread&) = delete;
  OfThread& operator=(const OfThread&) = delete;

  T& operator*() const noexcept { return *object_; }
  T* operator->() const noexcept { return object_; }

 private:
  // Trivially destructible, so that it can be used at any time.
  struct Kept {
    T* object;
    bool ended;
  };
  struct AtThreadEnd {
    AtThreadEnd() noexcept {}  // NOLINT: registers the destructor
    ~AtThreadEnd() {
      kept_.ended = true;
      delete std::exchange(kept_.object, nullptr);
    }
  };
  [[gnu::noinline]] static T* make() {
    T* const object = new T;
    if (!kept_.ended) {
      static thread_local AtThreadEnd at_thread_end;
      kept_.object = object;
    }
    return object;
  }
  static inline constinit thread_local Kept kept_{};

  T* const object_;
};

}  // namespace shmtree::platform
