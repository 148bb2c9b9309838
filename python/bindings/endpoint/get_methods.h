// Methods of several kinds of ends that receive, and the parsing of their arguments. An `End` has the static functions
//   get(self, deadline, copy)   returns the next object
//   get_many(self, most, deadline, copy, within) returns a list of 1 to `most` objects: the first one by the deadline,
//                                        and those that arrive `within` this time after it
// On failure, they return null with a Python error set.
#pragma once

#include <array>
#include <chrono>
#include <optional>

#include "bindings/codec/decode.h"
#include "bindings/cpython/arguments.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/options.h"
#include "bindings/cpython/wait_hooks.h"

namespace shmtree::python {

// Parses the arguments of get() and take(). Returns false with a Python error set.
inline bool parse_get(const char* function, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords,
                      platform::Deadline* deadline, CopyPolicy* copy) {
  const Signature<3> signature{function, {"block", "timeout", "copy"}, 2, 0};
  PyObject* given[3];
  return take_arguments(signature, args, nargs, keywords, given) && parse_deadline(given[0], given[1], deadline) &&
         parse_copy_policy(given[2], copy);
}

template <class End>
struct GetMethods {
  static PyObject* get(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
    platform::Deadline deadline;
    CopyPolicy copy = CopyPolicy::kAuto;
    if (!parse_get("get", args, nargs, keywords, &deadline, &copy)) return nullptr;
    return End::get(self, deadline, copy);
  }

  static PyObject* get_nowait(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
    static constexpr Signature<1> kSignature{"get_nowait", {"copy"}, 0, 0};
    PyObject* given[1];
    CopyPolicy copy = CopyPolicy::kAuto;
    if (!take_arguments(kSignature, args, nargs, keywords, given) || !parse_copy_policy(given[0], &copy)) {
      return nullptr;
    }
    return End::get(self, platform::Deadline::immediate(), copy);
  }

  static PyObject* get_many(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
    static constexpr Signature<4> kSignature{"get_many", {"n", "timeout", "copy", "within"}, 2, 1};
    PyObject* given[4];
    platform::Deadline deadline;
    std::optional<std::chrono::nanoseconds> within{0};
    CopyPolicy copy = CopyPolicy::kAuto;
    Py_ssize_t most = 0;
    if (!take_arguments(kSignature, args, nargs, keywords, given) || !parse_deadline(nullptr, given[1], &deadline) ||
        !parse_copy_policy(given[2], &copy) || !parse_count(given[0], &most) ||
        (given[3] && !parse_timeout(given[3], &within, "within"))) {
      return nullptr;
    }
    return End::get_many(self, most, deadline, copy, within);
  }

  // The function of a type's slot tp_iternext. The end of the stream ends the iteration.
  static PyObject* next(PyObject* self) {
    PyObject* object = End::get(self, platform::Deadline::never(), CopyPolicy::kAuto);
    const auto& types = error_types();
    const bool ended =
        !object && (PyErr_ExceptionMatches(types.channel_closed) || PyErr_ExceptionMatches(types.shut_down));
    if (ended) PyErr_Clear();
    return object;
  }

  static std::array<PyMethodDef, 3> table() {
    return {{
        {"get", as_method<get>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
        {"get_nowait", as_method<get_nowait>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
        {"get_many", as_method<get_many>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    }};
  }
};

}  // namespace shmtree::python
