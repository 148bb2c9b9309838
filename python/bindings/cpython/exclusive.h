// Locks for the state of this module when several Python threads run at once. They do nothing in a build with the GIL.
//
// In a free-threaded interpreter, "needs the GIL" means that the thread is attached to the interpreter.
#pragma once

#include <cstddef>
#include <mutex>

#include "bindings/cpython/gil.h"
#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// Protects the module's own state. A thread holds it for a few loads and stores and runs no Python code meanwhile.
class Mutex {
 public:
#ifdef Py_GIL_DISABLED
  void lock() noexcept {
    without_unwinding([this] { PyMutex_Lock(&mutex_); });
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

// Locks a Python object until the end of the scope, so that no other thread changes it. Like the GIL, the lock is
// released while the thread blocks, and while it waits for a nested section. Values read before a call into Python may
// have changed after it.
class CriticalSection {
 public:
#ifdef Py_GIL_DISABLED
  explicit CriticalSection(PyObject* object) noexcept {
    without_unwinding([&] { PyCriticalSection_Begin(&section_, object); });
  }
  ~CriticalSection() {
    without_unwinding([this] { PyCriticalSection_End(&section_); });
  }

 private:
  PyCriticalSection section_;
#else
  explicit CriticalSection(PyObject*) noexcept {}
  ~CriticalSection() {}                         // not trivial, so that compilers do not report the object as unused
#endif

 public:
  CriticalSection(const CriticalSection&) = delete;
  CriticalSection& operator=(const CriticalSection&) = delete;
};

// Number of per-call objects that a Pool keeps for later calls.
#ifdef Py_GIL_DISABLED
inline constexpr std::size_t kMaxKeptWarm = 64;  // enough for 64 threads
#else
inline constexpr std::size_t kMaxKeptWarm = 8;  // enough for nested calls, and for threads that copy without the GIL
#endif

// A stack of reusable objects. The object that was used last is taken first, because it is in the cache.
template <class Object>
class Pool {
 public:
  Object* take() {
    {
      const std::lock_guard guard(mutex_);
      if (count_ != 0) return objects_[--count_];
    }
    return new Object();
  }
  void give_back(Object* object) {
    {
      const std::lock_guard guard(mutex_);
      if (count_ < kMaxKeptWarm) {
        objects_[count_++] = object;
        return;
      }
    }
    delete object;
  }

 private:
  Mutex mutex_;
  Object* objects_[kMaxKeptWarm] = {};
  std::size_t count_ = 0;
};

}  // namespace shmtree::python
