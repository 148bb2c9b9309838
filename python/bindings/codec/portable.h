// Portable messages: no value in them depends on this machine.
#pragma once

#include <utility>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// Marks whether the message that this thread encodes must be portable. Code that makes a handle checks the mark. It
// cannot get the mark as an argument, because user code may be between it and the encoder.
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

// Sets NotPortable for an object of the type `what`. Returns null.
[[gnu::cold]] PyObject* refuse_local(const char* what);

}  // namespace shmtree::python
