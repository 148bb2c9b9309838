// Includes Python's and NumPy's C APIs with the same configuration in every file of the bindings.
//
// NumPy's function table exists once per extension module: module.cpp defines it (SHMTREE_OWNS_NUMPY_API), and all
// other files refer to it.
#pragma once

// cmake/ShmtreePython.cmake defines the macro for whole sources, since pybind11 may have included Python.h before.
#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_1_24_API_VERSION
#define NPY_TARGET_VERSION NPY_1_23_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL shmtree_numpy_api
#ifndef SHMTREE_OWNS_NUMPY_API
#define NO_IMPORT_ARRAY
#endif
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>
#pragma GCC diagnostic pop

#include <cstddef>
#include <span>
#include <utility>

namespace shmtree::python {

// An owned reference.
class Ref {
 public:
  Ref() noexcept = default;
  // Takes ownership of a new reference, which is null after a failed call.
  explicit Ref(PyObject* owned) noexcept : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(other.release()) {}
  Ref& operator=(Ref&& other) noexcept {
    if (this != &other) {
      PyObject* old = object_;
      object_ = other.release();
      Py_XDECREF(old);
    }
    return *this;
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(object_); }

  static Ref borrow(PyObject* object) noexcept {
    Py_XINCREF(object);
    return Ref(object);
  }

  PyObject* get() const noexcept { return object_; }
  PyObject* release() noexcept { return std::exchange(object_, nullptr); }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// Before Python 3.12 a str may not be in its canonical form yet. Returns false with a Python error set.
inline bool make_ready(PyObject* str) noexcept {
#if PY_VERSION_HEX >= 0x030c0000
  return str != nullptr;
#else
  return PyUnicode_READY(str) == 0;
#endif
}

// Returns the value of a key, or null if there is none; a missing key sets no error.
inline Ref item_of(PyObject* dict, PyObject* key) {
#if PY_VERSION_HEX >= 0x030d0000
  PyObject* found = nullptr;
  PyDict_GetItemRef(dict, key, &found);
  return Ref(found);
#else
  return Ref::borrow(PyDict_GetItemWithError(dict, key));
#endif
}

// Returns the raw attribute `name` of `type` and its bases, without calling descriptors. Runs no Python code.
inline Ref class_member(PyTypeObject* type, PyObject* name) {
#if PY_VERSION_HEX >= 0x030d0000
  return Ref(_PyType_LookupRef(type, name));
#else
  return Ref::borrow(_PyType_Lookup(type, name));
#endif
}

inline PyArrayObject* as_array(PyObject* object) noexcept {
  return reinterpret_cast<PyArrayObject*>(object);
}

// Converts numbers to a tuple. Returns null with a Python error set.
template <class Number>
Ref tuple_of(std::span<const Number> numbers) {
  Ref tuple(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  for (std::size_t i = 0; tuple && i < numbers.size(); ++i) {
    PyObject* number = PyLong_FromLongLong(numbers[i]);
    if (!number) return Ref();
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), number);
  }
  return tuple;
}

inline PyObject* type_object(PyTypeObject* type) noexcept {
  return reinterpret_cast<PyObject*>(type);
}

}  // namespace shmtree::python
