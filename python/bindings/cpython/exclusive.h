// What guards the state of this module where threads of Python run at once. Nothing where the GIL does so already.
//
// "Needs the GIL" means, in an interpreter without one, that the thread is attached to it.
#pragma once

#include <cstddef>
#include <mutex>

#include "bindings/cpython/gil.h"
#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// For state of the module's own; held for a few loads and stores, in which no Python code runs.
class Mutex {
 public:
#ifdef Py_GIL_DISABLED
  void lock() noexcept {
    staying([this] { PyMutex_Lock(&mutex_); });
  }
  void unlock() noexcept {
    PyMutex_Unlock(&mutex_);
  }

 private:
  PyMutex mutex_{};
#else
  void lock() noexcept {}
  void unlock() noexcept {}
#endif
};

// For an object of Python's, to the end of the scope: nobody changes it meanwhile. Like the GIL it is let go while the
// thread waits, and while it is in another such section that it has to wait for; so what was read before a call of
// Python may have changed after it.
class CriticalSection {
 public:
#ifdef Py_GIL_DISABLED
  explicit CriticalSection(PyObject* object) noexcept {
    staying([&] { PyCriticalSection_Begin(&section_, object); });
  }
  ~CriticalSection() {
    staying([this] { PyCriticalSection_End(&section_); });
  }

 private:
  PyCriticalSection section_;
#else
  explicit CriticalSection(PyObject*) noexcept {}
  ~CriticalSection() {}                          // not trivial, lest the object be called unused
#endif

 public:
  CriticalSection(const CriticalSection&) = delete;
  CriticalSection& operator=(const CriticalSection&) = delete;
};

// How much of what each call needs for itself is kept for the next one.
#ifdef Py_GIL_DISABLED
inline constexpr std::size_t kMostKeptWarm = 64;  // for as many threads
#else
inline constexpr std::size_t kMostKeptWarm = 8;  // for calls within calls, and threads that copy
#endif

// A stack of such things, so that the warm one is used again.
template <class Thing>
class Pool {
 public:
  Thing* take() {
    {
      const std::lock_guard guard(mutex_);
      if (count_ != 0) return things_[--count_];
    }
    return new Thing();
  }
  void give_back(Thing* thing) {
    {
      const std::lock_guard guard(mutex_);
      if (count_ < kMostKeptWarm) {
        things_[count_++] = thing;
        return;
      }
    }
    delete thing;
  }

 private:
  Mutex mutex_;
  Thing* things_[kMostKeptWarm] = {};
  std::size_t count_ = 0;
};

}  // namespace shmtree::python
