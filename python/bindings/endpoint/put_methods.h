// Methods of several kinds of ends that put, and the parsing of their arguments. An `End` has the static functions
//   put(self, object, deadline, move)        puts an object; returns the result of the method
//   put_many(self, iterable, deadline)       puts the items; returns their number, an int
// and for AckMethods
//   wait_for_acks(self, ticket, deadline)    waits for the message of a ticket: a sender until it is acked, a Broadcast
//                                            until every blocking subscriber has passed it. Without a ticket, a sender
//                                            waits for all messages of this process, a Broadcast for all of the object.
//                                            Returns None
// On failure, they return null with a Python error set.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "bindings/cpython/arguments.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/options.h"
#include "bindings/cpython/wait_hooks.h"

namespace shmtree::python {

// Parses the arguments of a method that waits for a number of peers. Returns false with a Python error set.
inline bool parse_wait_for_peers(const char* function, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords,
                                 std::uint64_t* count, platform::Deadline* deadline) {
  const Signature<2> signature{function, {"n", "timeout"}, 2, 1};
  PyObject* given[2];
  return take_arguments(signature, args, nargs, keywords, given) && parse_natural(given[0], "n", count) &&
         parse_deadline(nullptr, given[1], deadline);
}

template <class End>
struct PutMethods {
  static PyObject* put(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
    static constexpr Signature<4> kSignature{"put", {"obj", "block", "timeout", "move"}, 3, 1};
    PyObject* given[4];
    if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
    const int move = truth_of(given[3], 0);
    platform::Deadline deadline;
    if (move < 0 || !parse_deadline(given[1], given[2], &deadline)) return nullptr;
    return End::put(self, given[0], deadline, move == 1);
  }

  static PyObject* put_nowait(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
    static constexpr Signature<2> kSignature{"put_nowait", {"obj", "move"}, 1, 1};
    PyObject* given[2];
    if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
    const int move = truth_of(given[1], 0);
    return move < 0 ? nullptr : End::put(self, given[0], platform::Deadline::immediate(), move == 1);
  }

  static PyObject* put_many(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
    static constexpr Signature<2> kSignature{"put_many", {"iterable", "timeout"}, 2, 1};
    PyObject* given[2];
    platform::Deadline deadline;
    if (!take_arguments(kSignature, args, nargs, keywords, given) || !parse_deadline(nullptr, given[1], &deadline)) {
      return nullptr;
    }
    return End::put_many(self, given[0], deadline);
  }

  static std::array<PyMethodDef, 3> table() {
    return {{
        {"put", as_method<put>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
        {"put_nowait", as_method<put_nowait>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
        {"put_many", as_method<put_many>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    }};
  }
};

template <class End>
struct AckMethods {
  template <bool is_flush>
  static PyObject* wait_for_all(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
    static constexpr Signature<1> kSignature{is_flush ? "flush" : "wait_for_all_ack", {"timeout"}, 1, 0};
    PyObject* given[1];
    platform::Deadline deadline;
    if (!take_arguments(kSignature, args, nargs, keywords, given) || !parse_deadline(nullptr, given[0], &deadline)) {
      return nullptr;
    }
    return End::wait_for_acks(self, std::nullopt, deadline);
  }

  static PyObject* wait_for_ack(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
    static constexpr Signature<2> kSignature{"wait_for_ack", {"ticket", "timeout"}, 2, 1};
    PyObject* given[2];
    platform::Deadline deadline;
    if (!take_arguments(kSignature, args, nargs, keywords, given) || !parse_deadline(nullptr, given[1], &deadline)) {
      return nullptr;
    }
    const Ref number(PyNumber_Index(given[0]));
    if (!number) return nullptr;
    const unsigned long long ticket = PyLong_AsUnsignedLongLong(number.get());
    if (!PyErr_Occurred()) return End::wait_for_acks(self, ticket, deadline);
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return nullptr;
    return PyErr_Format(PyExc_ValueError, "ticket is %R; put() has returned no such ticket", number.get());
  }

  static std::array<PyMethodDef, 3> table() {
    return {{
        {"wait_for_all_ack", as_method<wait_for_all<false>>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
        {"flush", as_method<wait_for_all<true>>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
        {"wait_for_ack", as_method<wait_for_ack>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    }};
  }
};

}  // namespace shmtree::python
