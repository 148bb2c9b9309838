// Parses the arguments of functions that are called once per message. They use CPython's vectorcall convention, and
// parsing allocates nothing.
#pragma once

#include <cstddef>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// Names the parameters of a function. The first `positional` may be passed by position; the first `required` are
// mandatory.
template <std::size_t N>
struct Signature {
  const char* function;
  const char* names[N];
  std::size_t positional;
  std::size_t required;
};

// Stores borrowed references in `out`, null for each argument that was not passed. Returns false with TypeError set.
template <std::size_t N>
bool take_arguments(const Signature<N>& signature, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords,
                    PyObject* (&out)[N]) {
  for (auto& place : out) place = nullptr;
  if (nargs > static_cast<Py_ssize_t>(signature.positional)) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %zu positional arguments, but %zd were given", signature.function,
                 signature.positional, nargs);
    return false;
  }
  for (Py_ssize_t i = 0; i < nargs; ++i) out[i] = args[i];
  const Py_ssize_t count = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* name = PyTuple_GET_ITEM(keywords, i);
    std::size_t match = 0;
    while (match < N && PyUnicode_CompareWithASCIIString(name, signature.names[match]) != 0) ++match;
    if (match == N || out[match]) {
      PyErr_Format(PyExc_TypeError, match < N ? "%s() got '%U' twice" : "%s() got an unexpected argument '%U'",
                   signature.function, name);
      return false;
    }
    out[match] = args[nargs + i];
  }
  for (std::size_t i = 0; i < signature.required; ++i) {
    if (out[i]) continue;
    PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'", signature.function, signature.names[i]);
    return false;
  }
  return true;
}

// Returns 1, 0, or -1 with a Python error set. A null `value` counts as `otherwise`.
inline int truth_of(PyObject* value, int otherwise) {
  return value ? PyObject_IsTrue(value) : otherwise;
}

}  // namespace shmtree::python
