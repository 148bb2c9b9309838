// Methods of a pybind11 class that are called often, each time with caches that other work has filled: pybind11's
// dispatcher would then be most of the call.
#pragma once

#include "bindings/cpython/guarded.h"
#include "bindings/cpython/python_api.h"
// After python_api.h, which sets Python.h up.
#include <pybind11/pybind11.h>

namespace shmtree::python {

// What an object of a class, which has no other pybind11 base, holds. TypeError where __init__ was not called.
template <class T>
T& value_of(PyObject* object) {
  auto* held = reinterpret_cast<pybind11::detail::instance*>(object)->get_value_and_holder().template value_ptr<T>();
  if (held == nullptr) throw pybind11::type_error("__init__() of this object was not called");
  return *held;
}

// What function(object's T, arguments) returns or throws, for the tables of methods and properties.
template <class T, auto function, class... Arguments>
PyObject* call_fast(PyObject* object, Arguments... arguments) {
  try {
    return function(value_of<T>(object), arguments...).release().ptr();
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const pybind11::builtin_exception& error) {
    error.set_error();
  }
  return nullptr;
}

// Adds a method of the vectorcall convention. `T` is the class's, `function` takes it and the arguments.
template <class T, auto function>
void add_fast_method(pybind11::handle cls, const char* name) {
  using Arguments = PyObject* const*;
  auto* const method = new PyMethodDef{name, as_method<&call_fast<T, function, Arguments, Py_ssize_t>>(), METH_FASTCALL,
                                       nullptr};  // never freed, like the method
  auto made = pybind11::reinterpret_steal<pybind11::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(cls.ptr()), method));
  if (!made) throw pybind11::error_already_set();
  pybind11::setattr(cls, name, made);
}

// Adds a property that cannot be set.
template <class T, auto function>
void add_fast_property(pybind11::handle cls, const char* name, const char* doc) {
  auto* const property = new PyGetSetDef{name, guarded<&call_fast<T, function, void*>>, nullptr, doc, nullptr};
  auto made = pybind11::reinterpret_steal<pybind11::object>(
      PyDescr_NewGetSet(reinterpret_cast<PyTypeObject*>(cls.ptr()), property));
  if (!made) throw pybind11::error_already_set();
  pybind11::setattr(cls, name, made);
}

}  // namespace shmtree::python
