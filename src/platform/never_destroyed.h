// Objects that exist once per process and are created without a lock, since a child may be forked while another thread
// creates one.
#pragma once

#include <atomic>
#include <cstdint>

namespace shmtree::platform {

// Holds the one object of type T. It is never destroyed, since other objects may outlive every static one. It is made
// when the library is loaded, or earlier if a static initialiser of the program needs it. If two threads need it at the
// same time, each makes one, and one of the two is deleted. A child of a fork in between makes its own.
template <class T>
class NeverDestroyed {
 public:
  static T& get() noexcept {
    T* const object = object_.load(std::memory_order_acquire);
    return object != nullptr ? *object : make();
  }

 private:
  [[gnu::noinline]] static T& make() noexcept {
    static_cast<void>(&kMadeAtLoad);  // instantiates kMadeAtLoad
    T* existing = nullptr;
    auto* const created =
        new T;  // NOLINT(bugprone-unhandled-exception-at-new): a program that is loaded ends without it
    if (object_.compare_exchange_strong(existing, created, std::memory_order_acq_rel)) return *created;
    delete created;
    return *existing;
  }
  static inline constinit std::atomic<T*> object_{nullptr};
  static inline const bool kMadeAtLoad = (get(), true);
};

template <class T>
T& never_destroyed() noexcept {
  return NeverDestroyed<T>::get();
}

// Returns the result of compute(), an integer or a bool that never changes, and keeps it. Threads that need it at the
// same time each compute it.
template <auto compute>
auto computed_once() noexcept -> decltype(compute()) {
  constinit static std::atomic<std::uint64_t> one_more{0};
  std::uint64_t stored = one_more.load(std::memory_order_acquire);
  if (stored == 0) [[unlikely]] {
    stored = static_cast<std::uint64_t>(compute()) + 1;
    one_more.store(stored, std::memory_order_release);
  }
  return static_cast<decltype(compute())>(stored - 1);
}

}  // namespace shmtree::platform
