#include "bindings/codec/portable.h"

#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"

namespace shmtree::python {
namespace {

// Changes the message to "path: text". `path` is a str.
bool put_path_before(PyObject* exception, PyObject* path) {
  Ref text(PyUnicode_GET_LENGTH(path) == 0 ? PyUnicode_FromFormat("the message itself: %S", exception)
                                           : PyUnicode_FromFormat("%U: %S", path, exception));
  Ref arguments(text ? PyTuple_Pack(1, text.get()) : nullptr);
  return arguments && PyObject_SetAttrString(exception, "args", arguments.get()) == 0 &&
         PyObject_SetAttrString(exception, "path", path) == 0;
}

}  // namespace

PyObject* refuse_local(const char* what) {
  return PyErr_Format(error_types().not_portable,
                      "a %.200s is valid on this machine only, but what is sent here must be portable", what);
}

void explain_not_portable(PyObject* object) {
  if (!PyErr_Occurred() || !PyErr_ExceptionMatches(error_types().not_portable)) return;
  Ref exception = take_exception();
  const Ref path(call_python(package().path_of_local, object));
  if (path && PyUnicode_Check(path.get())) put_path_before(exception.get(), path.get());
  set_exception_again(std::move(exception));
}

}  // namespace shmtree::python
