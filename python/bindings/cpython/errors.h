// shmtree's results as Python exceptions.
//
// All calls need the GIL. The classes come from shmtree/errors.py and `queue`, and are looked up once.
#pragma once

#include "bindings/cpython/python_api.h"
#include "shmtree/result.h"

namespace shmtree::python {

struct ErrorTypes {
  PyObject* error;
  PyObject* channel_closed;
  PyObject* shut_down;
  PyObject* peer_died;
  PyObject* message_too_large;
  PyObject* out_of_shared_memory;
  PyObject* corrupt_message;
  PyObject* pickle_refused;
  PyObject* incompatible_arena;
  PyObject* unused_end_warning;
  PyObject* queue_full;
  PyObject* queue_empty;
};

// Finds the classes. False, with a Python error set, when one is missing.
bool init_errors();

// Valid after init_errors().
const ErrorTypes& error_types() noexcept;

// Sets the exception that stands for `error`, with its attributes (`sent` for Full, `pids` for PeerDied, `ticket` for
// CorruptMessage). An exception that is already set, as by a signal handler during a wait, is left as it is. Returns
// null, so that a caller can `return raise(error)`.
PyObject* raise(const Error& error);

// The exception that is set, with its traceback; it is not set any more then.
Ref take_exception();

// Turns whatever exception is set into CorruptMessage(`what`) with the original as its cause, except MemoryError and
// what is no Exception (KeyboardInterrupt), which stay.
void raise_corrupt_from_current(const char* what);

}  // namespace shmtree::python
