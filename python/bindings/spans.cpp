#include "bindings/spans.h"

namespace shmtree::python {
namespace {

// Written before spans_wanted, and never again.
PyObject* running_flags = nullptr;
PyObject* running_key = nullptr;
PyObject* begin_span = nullptr;

}  // namespace

void set_spans(PyObject* flags, PyObject* key, PyObject* begin) {
  if (running_flags) return;
  running_flags = Py_NewRef(flags);
  running_key = Py_NewRef(key);
  begin_span = Py_NewRef(begin);
  spans_wanted.store(true, std::memory_order_release);
}

void Span::begin(const char* name) {
  if (PyDict_GetItemWithError(running_flags, running_key) != Py_True) return;  // a str and a module's names: no errors
  span_ = PyObject_CallFunction(begin_span, "s", name);
  if (!span_) PyErr_WriteUnraisable(begin_span);
}

void Span::end() noexcept {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  if (const Ref ended(PyObject_CallMethod(span_, "__exit__", "OOO", Py_None, Py_None, Py_None)); !ended) {
    PyErr_WriteUnraisable(begin_span);
  }
  Py_CLEAR(span_);
  PyErr_Restore(type, value, traceback);
}

}  // namespace shmtree::python
