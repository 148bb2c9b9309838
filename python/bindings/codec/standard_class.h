// Classes of the standard library that decoding calls.
#pragma once

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// A variable of the file that calls the class.
class StandardClass {
 public:
  StandardClass(const char* module, const char* name) noexcept : module_(module), name_(name), next_(first_) {
    first_ = this;
  }
  StandardClass(const StandardClass&) = delete;
  StandardClass& operator=(const StandardClass&) = delete;

  // Returns a borrowed reference.
  PyObject* get() const noexcept { return class_; }

 private:
  friend bool init_standard_classes();
  static inline StandardClass* first_ = nullptr;

  const char* module_;
  const char* name_;
  PyObject* class_ = nullptr;
  StandardClass* next_;
};

// Imports the modules of the classes, when the extension is loaded. An import during a decode would hold the lock of a
// module, and a child that is forked meanwhile would wait for it forever. False with a Python error set.
bool init_standard_classes();

}  // namespace shmtree::python
