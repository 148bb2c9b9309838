// Converts Python ints of any size to and from little-endian two's complement. Hides the changes of CPython's API for
// it.
#pragma once

#include <cstddef>
#include <vector>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// Writes the fewest bytes that contain the sign bit, at least one. Returns false with a Python error set.
inline bool int_to_bytes(PyObject* value, std::vector<unsigned char>& out) {
#if PY_VERSION_HEX >= 0x030d0000
  constexpr int kFlags = Py_ASNATIVEBYTES_LITTLE_ENDIAN;
  const Py_ssize_t size = PyLong_AsNativeBytes(value, nullptr, 0, kFlags);
  if (size < 0) return false;
  out.resize(static_cast<std::size_t>(size));
  return PyLong_AsNativeBytes(value, out.data(), size, kFlags) >= 0;
#else
  const std::size_t bits = _PyLong_NumBits(value);
  if (bits == static_cast<std::size_t>(-1) && PyErr_Occurred()) return false;
  out.resize(bits / 8 + 1);
  return _PyLong_AsByteArray(reinterpret_cast<PyLongObject*>(value), out.data(), out.size(), 1, 1) == 0;
#endif
}

// Returns null with a Python error set.
inline PyObject* int_from_bytes(const void* bytes, std::size_t count) {
#if PY_VERSION_HEX >= 0x030d0000
  return PyLong_FromNativeBytes(bytes, count, Py_ASNATIVEBYTES_LITTLE_ENDIAN);
#else
  return _PyLong_FromByteArray(static_cast<const unsigned char*>(bytes), count, 1, 1);
#endif
}

}  // namespace shmtree::python
