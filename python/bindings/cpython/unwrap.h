// Unwraps a Result in functions that pybind11 calls. A failure is thrown as the Python exception that stands for it.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <initializer_list>
#include <new>
#include <utility>

#include "bindings/cpython/errors.h"
#include "shmtree/base/result.h"

namespace shmtree::python {

template <class T>
T unwrap(Result<T> result) {
  if (!result.ok()) {
    raise(result.error());
    throw pybind11::error_already_set();
  }
  return std::move(*result);
}

// Takes a new reference; if it is null, throws the Python error that is set.
inline pybind11::object own(PyObject* object) {
  if (!object) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(object);
}

// Calls make(), which returns an object of pybind11. Returns a new reference, or null with the Python error that it
// threw.
template <class Make>
PyObject* new_reference_from(Make make) {
  try {
    return make().release().ptr();
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const pybind11::builtin_exception& error) {
    error.set_error();
  } catch (const std::bad_alloc&) {
    throw;                                 // becomes MemoryError (guarded.h)
  } catch (const std::exception& error) {  // of pybind11, if an allocation of Python failed
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// Throws the Python error that is set, unless `succeeded`.
inline void check(bool succeeded) {
  if (!succeeded) throw pybind11::error_already_set();
}

// Returns the value at the index that one_of() has returned. Throws the Python error that is set if that is -1.
template <class Value>
Value chosen(int index, std::initializer_list<Value> values) {
  check(index >= 0);
  return values.begin()[index];
}

// Gives a public class the metaclass `type`. pybind11's own metaclass is only needed for static properties.
inline pybind11::metaclass plain_class() {
  return pybind11::metaclass(pybind11::handle(type_object(&PyType_Type)));
}

}  // namespace shmtree::python
