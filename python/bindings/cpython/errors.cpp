#include "bindings/cpython/errors.h"

#include <cstddef>

namespace shmtree::python {
namespace {

PyObject* class_of(const Error& error) noexcept {
  const Package& types = package();
  switch (error.code) {
    case Code::kFull: return types.queue_full;
    case Code::kEmpty: return types.queue_empty;
    case Code::kTimeout: return PyExc_TimeoutError;
    case Code::kClosed: return types.channel_closed;
    case Code::kShutDown: return types.shut_down;
    case Code::kPeerDied: return error.exit_code == 0 ? types.peer_died : types.worker_failed;
    case Code::kMessageTooLarge: return types.message_too_large;
    case Code::kOutOfSharedMemory: return types.out_of_shared_memory;
    case Code::kCorrupt: return types.corrupt_message;
    case Code::kPickleRefused: return types.pickle_refused;
    case Code::kIncompatible: return types.incompatible_arena;
    case Code::kNotFound: return PyExc_FileNotFoundError;
    case Code::kExists: return PyExc_FileExistsError;
    case Code::kInvalid: return PyExc_ValueError;
    case Code::kInterrupted: return PyExc_KeyboardInterrupt;
    case Code::kUnavailable: return types.error;
    case Code::kOs: return PyExc_OSError;
    case Code::kOverrun: return types.overrun;
    case Code::kRemoteError: return types.error;  // only clients in C++ get this error
  }
  return PyExc_SystemError;
}

bool set_attribute(PyObject* exception, const char* name, Ref value) {
  return value && PyObject_SetAttrString(exception, name, value.get()) == 0;
}

bool set_attribute(PyObject* exception, const char* name, std::uint64_t number) {
  return set_attribute(exception, name, Ref(PyLong_FromUnsignedLongLong(number)));
}

bool add_attributes(PyObject* exception, const Error& error) {
  switch (error.code) {
    case Code::kFull: return set_attribute(exception, "sent", error.completed);
    case Code::kPeerDied:
      if (error.exit_code > 0 && !set_attribute(exception, "exit_code", static_cast<std::uint64_t>(error.exit_code)))
        return false;
      return set_attribute(exception, "pids", tuple_of(std::span<const int>(error.pids)));
    case Code::kCorrupt: return set_attribute(exception, "ticket", error.ticket);
    case Code::kOverrun: return set_attribute(exception, "missed", error.missed);
    default: return true;
  }
}

}  // namespace

Ref take_exception() {
#if PY_VERSION_HEX >= 0x030c0000
  return Ref(PyErr_GetRaisedException());
#else
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  if (!type) return Ref();
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return Ref(value);
#endif
}

void set_exception(Ref exception) {
#if PY_VERSION_HEX >= 0x030c0000
  PyErr_SetRaisedException(exception.release());
#else
  PyObject* type = exception ? Py_NewRef(type_object(Py_TYPE(exception.get()))) : nullptr;
  PyObject* traceback = exception ? PyException_GetTraceback(exception.get()) : nullptr;
  PyErr_Restore(type, exception.release(), traceback);
#endif
}

void add_to_exception(const char* name, std::uint64_t number) {
  Ref exception = take_exception();
  set_attribute(exception.get(), name, number);
  set_exception_again(std::move(exception));
}

PyObject* raise(const Error& error) {
  if (PyErr_Occurred()) return nullptr;
  Ref message(PyUnicode_DecodeUTF8(error.message.data(), static_cast<Py_ssize_t>(error.message.size()), "replace"));
  if (!message) return nullptr;
  PyObject* cls = class_of(error);
  Ref exception(error.os_errno != 0 && PyObject_IsSubclass(cls, PyExc_OSError) == 1
                    ? PyObject_CallFunction(cls, "iO", error.os_errno, message.get())
                    : PyObject_CallFunctionObjArgs(cls, message.get(), nullptr));
  if (!exception || !add_attributes(exception.get(), error)) return nullptr;
  PyErr_SetObject(type_object(Py_TYPE(exception.get())), exception.get());
  return nullptr;
}

PyObject* raise_from_frame(const Error& error) {
  if (error.code != Code::kCorrupt && error.code != Code::kIncompatible) return raise(error);
  if (PyErr_Occurred()) return nullptr;
  PyObject* const cls = error.code == Code::kCorrupt ? package().corrupt_message : package().incompatible_message;
  return PyErr_Format(cls, "%s", error.message.c_str());
}

void set_exception_again(Ref exception) {
  if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_Exception)) set_exception(std::move(exception));
}

bool is_ordinary_exception() {
  return PyErr_ExceptionMatches(PyExc_Exception) && !PyErr_ExceptionMatches(PyExc_MemoryError);
}

bool is_failed_lookup() {
  return PyErr_ExceptionMatches(PyExc_ImportError) || PyErr_ExceptionMatches(PyExc_AttributeError);
}

bool clear_ordinary_exception() {
  if (!PyErr_Occurred()) return true;
  if (!is_ordinary_exception()) return false;
  PyErr_Clear();
  return true;
}

void raise_corrupt_from_current(const char* what) {
  if (!is_ordinary_exception()) return;
  // The Python code that builds the values has already raised an error with the reason.
  if (PyErr_ExceptionMatches(package().corrupt_message) || PyErr_ExceptionMatches(package().pickle_refused)) return;
  Ref cause = take_exception();
  Ref exception(PyObject_CallFunction(package().corrupt_message, "s", what));
  if (!exception) return;
  PyException_SetCause(exception.get(), cause.release());
  PyErr_SetObject(package().corrupt_message, exception.get());
}

}  // namespace shmtree::python
