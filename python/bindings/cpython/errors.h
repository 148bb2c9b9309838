// Converts shmtree's errors to Python exceptions. All calls need the GIL.
#pragma once

#include "bindings/cpython/package.h"
#include "shmtree/base/result.h"

namespace shmtree::python {

// Sets the exception that stands for `error`, with its attributes (`sent` for Full, `pids` for PeerDied, also
// `exit_code` for WorkerFailed, `ticket` for CorruptMessage, `missed` for Overrun). Keeps an exception that is already
// set, for example by a signal handler during a wait. Returns null, so that a caller can `return raise(error)`.
PyObject* raise(const Error& error);

// Does the same for an error of a frame: sets CorruptMessage, or IncompatibleMessage for a frame of another version.
// Neither has a ticket; the caller adds one if the frame has one.
PyObject* raise_from_frame(const Error& error);

// Returns the exception that is set, with its traceback, and clears it. Returns null if none is set.
Ref take_exception();

// Sets `exception` as the current one, in place of any other.
void set_exception(Ref exception);

// Adds a number as an attribute to the exception that is set.
void add_to_exception(const char* name, std::uint64_t number);

// True if the current exception is an Exception other than MemoryError. The others (MemoryError, KeyboardInterrupt,
// SystemExit and other subclasses of BaseException) say nothing about the value that is sent or read.
bool is_ordinary_exception();

// True if the current exception is an ImportError or AttributeError: a name does not lead to an object.
bool is_failed_lookup();

// Clears the current exception if it is ordinary, or if there is none. Returns false if another exception is set, and
// leaves it.
bool clear_ordinary_exception();

// Sets `exception` again after calls that add to it. An error of these calls must not hide it, so ordinary errors and
// MemoryError are cleared. KeyboardInterrupt and others that are not an Exception stay set in its place.
void set_exception_again(Ref exception);

// Replaces the current exception with CorruptMessage(`what`) and makes the original its cause. Keeps MemoryError and
// exceptions that are not an Exception, such as KeyboardInterrupt.
void raise_corrupt_from_current(const char* what);

}  // namespace shmtree::python
