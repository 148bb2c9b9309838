#include "bindings/cpython/options.h"

#include <limits>
#include <string>

namespace shmtree::python {

namespace {

// Formats a number by str(), because the repr of a NumPy number contains its type.
bool refuse(PyObject* value, const char* name, const char* rule) {
  const char* const format = PyUnicode_Check(value) ? "%s is %R; it must %s" : "%s is %S; it must %s";
  PyErr_Format(PyExc_ValueError, format, name, value, rule);
  return false;
}

bool parse_not_negative(PyObject* value, const char* name, const char* rule, std::uint64_t* out) {
  std::int64_t number = 0;
  if (!parse_whole(value, name, &number)) return false;
  *out = static_cast<std::uint64_t>(number);
  return number >= 0 || refuse(value, name, rule);
}

}  // namespace

bool parse_whole(PyObject* value, const char* name, std::int64_t* out) {
  const Ref number(PyNumber_Index(value));
  if (!number) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Format(PyExc_TypeError, "%s is %R; it must be an int", name, value);
    }
    return false;
  }
  int overflow = 0;
  *out = PyLong_AsLongLongAndOverflow(number.get(), &overflow);
  if (overflow > 0) PyErr_Format(PyExc_OverflowError, "%s is %S; it must be below 2**63", name, number.get());
  if (overflow < 0) *out = std::numeric_limits<std::int64_t>::min();
  return overflow <= 0;
}

bool parse_natural(PyObject* value, const char* name, std::uint64_t* out) {
  return parse_not_negative(value, name, "not be negative", out);
}

bool parse_limit(PyObject* value, const char* name, std::uint64_t* out) {
  *out = 0;
  return value == Py_None || parse_not_negative(value, name, "be positive, or None or 0 for no limit", out);
}

bool parse_flag(PyObject* value, bool* out) {
  const int truth = PyObject_IsTrue(value);
  *out = truth > 0;
  return truth >= 0;
}

int one_of(PyObject* value, const char* name, std::initializer_list<const char*> words) {
  std::string rule;
  int index = 0;
  for (const char* word : words) {
    if (PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, word) == 0) return index;
    ++index;
    rule += rule.empty() ? "be " : word == words.end()[-1] ? " or " : ", ";
    rule += '\'' + std::string(word) + '\'';
  }
  refuse(value, name, rule.c_str());
  return -1;
}

int one_of_keep_open(PyObject* keep_open) {
  if (!PyUnicode_Check(keep_open)) return PyObject_IsTrue(keep_open);
  if (PyUnicode_CompareWithASCIIString(keep_open, "both") == 0) return 2;
  refuse(keep_open, "keep_open", "be False, True or 'both'");
  return -1;
}

bool parse_count(PyObject* value, Py_ssize_t* count) {
  if (PyBool_Check(value)) {  // get() of other queues has `block` as its first argument
    PyErr_Format(PyExc_TypeError, "n is %R; it must be a number of objects", value);
    return false;
  }
  Ref number(PyNumber_Index(value));
  if (!number) return false;
  *count = PyLong_AsSsize_t(number.get());
  if (*count < 1 && !PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "n is %zd; it must be at least 1", *count);
  return *count >= 1;
}

}  // namespace shmtree::python
