#include "bindings/cpython/docstrings.h"

// After Python.h, as Python before 3.12 demands.
#include <structmember.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>

namespace shmtree::python {
namespace {

struct Docstring {
  const char* name;
  const char* text;
};

constexpr Docstring kDocstrings[] = {
#include "bindings/docstrings.inc"
};

// Returns the object of a name, such as "Frame.ack", or null with a Python error set.
Ref find(PyObject* module, std::string_view name) {
  Ref found = Ref::borrow(module);
  while (found && !name.empty()) {
    const std::string_view part = name.substr(0, name.find('.'));
    const Ref key(PyUnicode_FromStringAndSize(part.data(), static_cast<Py_ssize_t>(part.size())));
    if (!key) return Ref();
    found = Ref(PyObject_GetAttr(found.get(), key.get()));
    name.remove_prefix(std::min(name.size(), part.size() + 1));
  }
  return found;
}

// The table of one of pybind11's functions owns its text. Such a function takes `self` as a plain parameter, which `$`
// would hide.
char* text_of_own_function(const char* text) {
  char* const copy = strdup(text);
  if (copy != nullptr) *std::remove(copy, copy + std::strlen(copy), '$') = '\0';
  return copy;
}

void set_text_of_function(PyObject* function, const char* text) {
  PyObject* const self = PyCFunction_GET_SELF(function);
  const bool has_own_table = self != nullptr && !PyModule_Check(self) && !PyType_Check(self);
  reinterpret_cast<PyCFunctionObject*>(function)->m_ml->ml_doc = has_own_table ? text_of_own_function(text) : text;
}

// A type that is immutable also accepts a text as long as it was not used.
bool set_text_of_type(PyTypeObject* type, const char* text) {
  const Ref value(PyUnicode_FromString(text));
  if (!value || PyDict_SetItemString(type->tp_dict, "__doc__", value.get()) != 0) return false;
  PyType_Modified(type);
  return true;
}

bool set_text(PyObject* place, const char* text) {
  const PyTypeObject* const type = Py_TYPE(place);
  if (PyType_Check(place)) return set_text_of_type(reinterpret_cast<PyTypeObject*>(place), text);
  if (type == &PyMethodDescr_Type) {
    reinterpret_cast<PyMethodDescrObject*>(place)->d_method->ml_doc = text;
  } else if (type == &PyGetSetDescr_Type) {
    reinterpret_cast<PyGetSetDescrObject*>(place)->d_getset->doc = text;
  } else if (type == &PyMemberDescr_Type) {
    reinterpret_cast<PyMemberDescrObject*>(place)->d_member->doc = text;
  } else if (PyCFunction_Check(place)) {
    set_text_of_function(place, text);
  } else {  // pybind11's properties
    const Ref value(PyUnicode_FromString(text));
    return value && PyObject_SetAttrString(place, "__doc__", value.get()) == 0;
  }
  return true;
}

}  // namespace

bool set_docstrings(PyObject* module) {
  return std::all_of(std::begin(kDocstrings), std::end(kDocstrings), [&](const Docstring& docstring) {
    const Ref place = find(module, docstring.name);
    return place && set_text(place.get(), docstring.text);
  });
}

}  // namespace shmtree::python
