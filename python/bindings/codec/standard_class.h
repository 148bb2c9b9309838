// Classes of the standard library that decoding calls.
#pragma once

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// Declare it as a variable in the file that calls the class.
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

// Imports the modules of the classes. Called when the extension is loaded. An import during a decode would hold the
// lock of a module, and a child that is forked meanwhile would block on that lock forever. Returns false with a Python
// error set.
bool init_standard_classes();

}  // namespace shmtree::python
