#include "bindings/endpoint/spans.h"

#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"

namespace shmtree::python {
namespace {

// Written once, before spans_wanted is set.
PyObject* running_flags = nullptr;
PyObject* running_key = nullptr;
PyObject* begin_span = nullptr;

int raise_now(void* exception) {
  const Ref owned(static_cast<PyObject*>(exception));
  PyErr_SetObject(type_object(Py_TYPE(owned.get())), owned.get());
  return -1;
}

// An error in the profiler does not prevent a message from being sent. An exception that a signal handler raised in it,
// such as KeyboardInterrupt, belongs to the program and is raised a moment later.
void settle_exception() noexcept {
  if (PyErr_ExceptionMatches(PyExc_Exception)) return PyErr_WriteUnraisable(begin_span);
  Ref exception = take_exception();
  PyException_SetTraceback(exception.get(), Py_None);  // drops the frames of the profiler
  if (Py_AddPendingCall(raise_now, exception.get()) != 0) return PyErr_SetInterrupt();
  exception.release();  // raise_now() owns it now
}

}  // namespace

void set_spans(PyObject* flags, PyObject* key, PyObject* begin) {
  if (running_flags) return;
  running_flags = Py_NewRef(flags);
  running_key = Py_NewRef(key);
  begin_span = Py_NewRef(begin);
  spans_wanted.store(true, std::memory_order_release);
}

void Span::begin(const char* name) {
  // The key is a str and the dict belongs to a module, so the lookup sets no error.
  if (PyDict_GetItemWithError(running_flags, running_key) != Py_True) return;
  span_ = without_unwinding([name] { return PyObject_CallFunction(begin_span, "s", name); });
  if (!span_) settle_exception();
}

void Span::end() noexcept {
  Ref exception = take_exception();
  const Ref ended(
      without_unwinding([this] { return PyObject_CallMethod(span_, "__exit__", "OOO", Py_None, Py_None, Py_None); }));
  if (!ended) settle_exception();
  Py_CLEAR(span_);
  set_exception(std::move(exception));
}

}  // namespace shmtree::python
