// What is to be portable: nothing in it may mean something on this machine only.
#pragma once

#include <utility>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// While it is there this thread encodes a message that is, or is not, to be portable: who makes a handle asks, since
// code of the user's may be in between.
class PortableScope {
 public:
  explicit PortableScope(bool portable) noexcept : before_(std::exchange(is_portable_, portable)) {}
  ~PortableScope() { is_portable_ = before_; }
  PortableScope(const PortableScope&) = delete;
  PortableScope& operator=(const PortableScope&) = delete;
  static bool is_portable() noexcept { return is_portable_; }

 private:
  static inline thread_local bool is_portable_ = false;
  const bool before_;
};

// Sets NotPortable: `what` is a kind of thing. Returns null.
[[gnu::cold]] PyObject* refuse_local(const char* what);
// If that is set, adds where in `object` it lies.
[[gnu::cold]] void explain_not_portable(PyObject* object);

}  // namespace shmtree::python
