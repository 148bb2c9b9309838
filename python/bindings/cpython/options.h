// Converts options that users pass, and checks them. Errors that this file raises name the option, its value and what
// is allowed. On failure, the functions return false (or -1) with a Python error set. They need the GIL.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// Converts an int, or an object with __index__. TypeError for any other object, OverflowError from 2**63 on. Numbers
// below -2**63 become -2**63, because callers refuse or clamp every negative number.
bool parse_whole(PyObject* value, const char* name, std::int64_t* out);
// Does the same, and raises ValueError for a negative number.
bool parse_natural(PyObject* value, const char* name, std::uint64_t* out);
// Converts a limit, for which the core's 0 means no limit: None, or a number that is not negative.
bool parse_limit(PyObject* value, const char* name, std::uint64_t* out);
// Converts any object to a bool.
bool parse_flag(PyObject* value, bool* out);

// Returns the index of `value` in `words`. ValueError if it is not one of them.
int one_of(PyObject* value, const char* name, std::initializer_list<const char*> words);
// Returns the index of `keep_open` in (False, True, "both"). ValueError for another str; other objects are
// converted to a bool.
int one_of_keep_open(PyObject* keep_open);

// Converts the argument `n` of a call that returns several objects: at least 1. TypeError for a bool: it
// is probably the argument `block` of get() of a standard queue.
bool parse_count(PyObject* value, Py_ssize_t* count);

}  // namespace shmtree::python
