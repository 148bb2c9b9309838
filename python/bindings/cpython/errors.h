// shmtree's results as Python exceptions.
//
// All calls need the GIL.
#pragma once

#include "bindings/cpython/package.h"
#include "shmtree/result.h"

namespace shmtree::python {

// Sets the exception that stands for `error`, with its attributes (`sent` for Full, `pids` for PeerDied, `ticket` for
// CorruptMessage, `missed` for Overrun). An exception that is already set, as by a signal handler during a wait, is
// left as it is. Returns null, so that a caller can `return raise(error)`.
PyObject* raise(const Error& error);

// Does the same for an error of a frame: a CorruptMessage, or IncompatibleMessage for a frame of another version. Both
// are without a ticket, which the caller adds if the frame has one.
PyObject* raise_from_frame(const Error& error);

// The exception that is set, with its traceback; it is not set any more then. Null when there is none.
Ref take_exception();

// Sets it again, in place of any other.
void set_exception(Ref exception);

// Gives the exception that is set a number as an attribute.
void add_to_exception(const char* name, std::uint64_t number);

// True if the current exception is an Exception other than MemoryError. All others are not about the value that is sent
// or read: MemoryError, KeyboardInterrupt, SystemExit, and other subclasses of BaseException.
bool is_ordinary_exception();

// True if the current exception is an ImportError or AttributeError: a name does not lead to an object.
bool is_failed_lookup();

// Clears the current exception if it is ordinary, or if there is none. Returns false if another exception is set, and
// leaves it.
bool clear_ordinary_exception();

// Sets `exception` again after calls that add to it. An error of these calls must not hide it: ordinary ones and
// MemoryError are cleared. KeyboardInterrupt and others that are no Exception stay set in its place.
void set_exception_again(Ref exception);

// Turns whatever exception is set into CorruptMessage(`what`) with the original as its cause, except MemoryError and
// what is no Exception (KeyboardInterrupt), which stay.
void raise_corrupt_from_current(const char* what);

}  // namespace shmtree::python
