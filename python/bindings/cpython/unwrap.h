// Results in functions that pybind11 calls: a failure becomes the Python exception that stands for it.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

#include "bindings/cpython/errors.h"
#include "shmtree/result.h"

namespace shmtree::python {

template <class T>
T unwrap(Result<T> result) {
  if (!result.ok()) {
    raise(result.error());
    throw pybind11::error_already_set();
  }
  return std::move(*result);
}

// For a new reference, or null with a Python error set.
inline pybind11::object own(PyObject* object) {
  if (!object) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(object);
}

// For classes that users look at: pybind11's own metaclass is only for static properties.
inline pybind11::metaclass plain_class() {
  return pybind11::metaclass(pybind11::handle(type_object(&PyType_Type)));
}

}  // namespace shmtree::python
