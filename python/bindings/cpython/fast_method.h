// Adds methods to pybind11 classes without pybind11's dispatcher. Programs call these methods often and do other work
// in between, so the dispatcher's code and data are no longer in the caches. It would then take most of the time of
// such a call.
#pragma once

#include "bindings/cpython/guarded.h"
#include "bindings/cpython/python_api.h"
#include "bindings/cpython/unwrap.h"
// After python_api.h, which configures Python.h.
#include <pybind11/pybind11.h>

namespace shmtree::python {

// Returns the C++ value in an object. Its class has no other pybind11 base. Throws TypeError if __init__ was not
// called.
template <class T>
T& value_of(PyObject* object) {
  auto* held = reinterpret_cast<pybind11::detail::instance*>(object)->get_value_and_holder().template value_ptr<T>();
  if (held == nullptr) throw pybind11::type_error("__init__() of this object was not called");
  return *held;
}

// Calls function(the object's T, arguments) for the tables of methods and properties. Returns its result, or null with
// the Python error that it threw.
template <class T, auto function, class... Arguments>
PyObject* call_fast(PyObject* object, Arguments... arguments) {
  return new_reference_from([&] { return function(value_of<T>(object), arguments...); });
}

// Adds a method with the vectorcall convention to `cls`, the class of `T`. `function` takes the T and the arguments.
template <class T, auto function>
void add_fast_method(pybind11::handle cls, const char* name) {
  using Arguments = PyObject* const*;
  auto* const method = new PyMethodDef{name, as_method<&call_fast<T, function, Arguments, Py_ssize_t>>(), METH_FASTCALL,
                                       nullptr};  // never freed, like the method
  auto descriptor = pybind11::reinterpret_steal<pybind11::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(cls.ptr()), method));
  if (!descriptor) throw pybind11::error_already_set();
  pybind11::setattr(cls, name, descriptor);
}

// Adds a read-only property.
template <class T, auto function>
void add_fast_property(pybind11::handle cls, const char* name) {
  auto* const property = new PyGetSetDef{name, guarded<&call_fast<T, function, void*>>, nullptr, nullptr, nullptr};
  auto descriptor = pybind11::reinterpret_steal<pybind11::object>(
      PyDescr_NewGetSet(reinterpret_cast<PyTypeObject*>(cls.ptr()), property));
  if (!descriptor) throw pybind11::error_already_set();
  pybind11::setattr(cls, name, descriptor);
}

}  // namespace shmtree::python
